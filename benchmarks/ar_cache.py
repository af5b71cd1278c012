"""The AR decoder's key-value cache: one clip with it and without it.

    OMP_NUM_THREADS=2 python benchmarks/ar_cache.py [--preset official|small] [--json out.json]

On a machine that is busy with other work: OMP_NUM_THREADS=1 and --cpu-time.

With the cache a whole clip is generated and timed. Without it every step recomputes the sequence
so far; that is timed at a few lengths only and summed up over all lengths by linear interpolation,
since a full-size clip would take minutes. The cached float32 clip reads every weight from memory
once per token, so memory sets its speed; int8 weights are a quarter of that.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from diffsound.decoder.ar import ARDecoder
from diffsound.decoder.config import ARConfig
from diffsound.decoder.quantize import quantize_int8
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
    parser.add_argument("--preset", choices=["official", "small"], default="official")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    repeats = arguments.repeats
    torch.manual_seed(0)

    config = ARConfig.official() if arguments.preset == "official" else ARConfig.small()
    decoder = ARDecoder(config).eval()
    model = decoder.transformer
    pooled = torch.randn(1, config.text_dim)
    text = TextFeatures(pooled[:, None], torch.ones(1, 1, dtype=torch.bool), pooled)
    grid = (config.rows, config.columns)

    def clip() -> None:
        decoder.generate(text, grid, [torch.Generator().manual_seed(0)])

    cached = seconds(clip, repeats, clock)
    prefix, mask = model.prefix(text)
    steps = len(model.step_positions(config.columns))
    lengths = np.linspace(0, steps - 1, 6).astype(int)
    uncached_steps = []
    for length in lengths:
        written = torch.randn(1, int(length), config.width)
        uncached_steps.append(
            seconds(lambda written=written: model(prefix, mask, written), repeats + 1, clock)
        )
    uncached = float(np.interp(np.arange(steps), lengths, uncached_steps).sum())
    quantize_int8(decoder)
    cached_int8 = seconds(clip, repeats, clock)
    report = {
        "without cache (extrapolated)": uncached,
        "with cache": cached,
        "with cache, int8": cached_int8,
        "without / with": uncached / cached,
        "without / with, int8": uncached / cached_int8,
    }
    print(f"{arguments.preset}, {torch.get_num_threads()} threads, {steps} steps, seconds per clip")
    for name, value in report.items():
        print(f"  {name:30} {value:8.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
