"""The AR decoder's key-value cache: one clip with it and without it.

    OMP_NUM_THREADS=2 python benchmarks/ar_cache.py [--preset official|small|tiny] [--batch 1 8]
        [--json out.json]

On a machine that is busy with other work: OMP_NUM_THREADS=1 and --cpu-time.

With the cache a whole clip is generated and timed. Without it every step recomputes the sequence
so far; that is timed at a few lengths only and summed up over all lengths by linear interpolation,
since a full-size clip would take minutes. The cached float32 clip reads every weight from memory
once per token, so memory sets its speed; int8 weights are a quarter of that, and clips that are
made together (candidates of one prompt) share the reading: `--batch` takes several numbers.
tiny only shows that it works: its figures say nothing.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from diffsound.decoder.ar import ARDecoder
from diffsound.decoder.config import ARConfig
from diffsound.model.backends import quantize_int8
from diffsound.text.features import TextFeatures


def seconds(function: Callable[[], object], repeats: int, clock: Callable[[], float]) -> float:
    """The best of a few runs."""
    best = float("inf")
    for _ in range(repeats):
        started = clock()
        function()
        best = min(best, clock() - started)
    return best


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=["official", "small", "tiny"], default="official")
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    repeats = arguments.repeats
    torch.manual_seed(0)

    config: ARConfig = getattr(ARConfig, arguments.preset)()
    decoder = ARDecoder(config).eval()
    rough = quantize_int8(copy.deepcopy(decoder))
    reports = {}
    for batch in arguments.batch:
        print(f"{arguments.preset}, {torch.get_num_threads()} threads, {batch} at once")
        reports[batch] = compare(decoder, rough, batch, repeats, clock)
        for name, value in reports[batch].items():
            print(f"  {name:46} {value:8.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(reports, indent=2))


def compare(
    decoder: ARDecoder, rough: ARDecoder, batch: int, repeats: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Seconds per clip, made `batch` at a time, and their ratios."""
    config, model = decoder.config, decoder.transformer
    pooled = torch.randn(batch, config.text_dim)
    text = TextFeatures(pooled[:, None], torch.ones(batch, 1, dtype=torch.bool), pooled)
    prefix, mask = model.prefix(text)
    steps = len(model.step_positions(config.columns))
    lengths = np.linspace(0, steps - 1, 6).astype(int)
    uncached_steps = []
    for length in lengths:
        written = torch.randn(batch, int(length), config.width)
        uncached_steps.append(
            seconds(lambda written=written: model(prefix, mask, written), repeats, clock)
        )
    uncached = float(np.interp(np.arange(steps), lengths, uncached_steps).sum()) / batch

    def clip(made_by: ARDecoder) -> float:
        def generate() -> None:
            generators = [torch.Generator().manual_seed(seed) for seed in range(batch)]
            made_by.generate(text, (config.rows, config.columns), generators)

        return seconds(generate, repeats, clock) / batch

    cached, cached_int8 = clip(decoder), clip(rough)
    return {
        "seconds per clip without cache (extrapolated)": uncached,
        "with cache": cached,
        "with cache, int8": cached_int8,
        "without / with": uncached / cached,
        "without / with, int8": uncached / cached_int8,
    }


if __name__ == "__main__":
    main()
