"""From a sentence to a WAV file: each stage's time, cold start and memory.

    python benchmarks/text_to_wav.py [--bundle DIR] [--seconds 10] [--steps 25] [--json]

Warm times are the median of several runs in one process. The cold start is a fresh process from
its start to the file on disk. Targets on two cores: 10 s of sound warm in 1 s at 25 steps, cold in
5 s, at most 1 GB resident.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PROMPT = "a dog barks in the distance"


def median_seconds(work: Callable[[], object], repeats: int) -> float:
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def warm(bundle: str | None, seconds: float, steps: int, repeats: int) -> dict[str, float]:
    """Seconds of each stage and of the whole call, in this process."""
    import torch

    from diffsound.pipeline import TextToSound

    start = time.perf_counter()
    pipeline = TextToSound.from_pretrained(bundle)
    load = time.perf_counter() - start
    parts, stages = pipeline.bundle, pipeline.stages
    settings = pipeline.sampling_settings(num_inference_steps=steps)
    columns = pipeline.columns(round(seconds * pipeline.sample_rate))
    text, negative = parts.text_encoder([PROMPT]), parts.text_encoder([""])
    generators = [torch.Generator().manual_seed(0)]
    grid = (parts.codec.rows, columns)
    with torch.inference_mode():
        tokens = stages.generate(text, grid, generators, settings, negative=negative)
        mel = stages.decode(tokens).clamp(0, 1)
        times = {
            "text encoder": median_seconds(lambda: parts.text_encoder([PROMPT]), repeats),
            "decoder": median_seconds(
                lambda: stages.generate(text, grid, generators, settings, negative=negative),
                repeats,
            ),
            "codec": median_seconds(lambda: stages.decode(tokens), repeats),
            "vocoder": median_seconds(lambda: stages.vocode(mel), repeats),
        }
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "x.wav"

        def whole() -> None:
            pipeline(PROMPT, duration=seconds, num_inference_steps=steps, seed=0)[0].save(target)

        times["text to WAV, warm"] = median_seconds(whole, repeats)
    times["load the bundle"] = load
    return times


def cold(bundle: str | None, seconds: float, steps: int) -> tuple[float, float]:
    """Seconds from process start to the file written, and the process's peak memory in MB."""
    code = (
        "import sys, resource; from diffsound.cli.main import run\n"
        "try: run(sys.argv[1:])\n"
        "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", code, "generate", PROMPT, "-o", f"{folder}/x.wav"]
        command += ["--duration", str(seconds), "--steps", str(steps), "--seed", "0"]
        command += ["--bundle", bundle] if bundle else []
        start = time.perf_counter()
        result = subprocess.run(command, check=True, capture_output=True, text=True)
        return time.perf_counter() - start, int(result.stderr.split()[-1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    started = [cold(options.bundle, options.seconds, options.steps) for _ in range(2)]
    times = warm(options.bundle, options.seconds, options.steps, options.repeats)
    times["text to WAV, cold"] = min(elapsed for elapsed, _ in started)
    memory = {
        "cold process": max(peak for _, peak in started),
        "this process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    if options.json:
        made = {"sound_seconds": options.seconds, "steps": options.steps}
        print(json.dumps(made | {"seconds": times, "peak_mb": memory}))
        return
    print(f"{options.seconds:g} s of sound, {options.steps} steps")
    for name, value in times.items():
        print(f"{name:>20}  {value * 1000:8.1f} ms")
    for name, value in memory.items():
        print(f"{'peak, ' + name:>20}  {value:8.0f} MB")


if __name__ == "__main__":
    main()
