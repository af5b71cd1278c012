"""From a sentence to a WAV file: each stage's time, cold start and memory.

    python benchmarks/text_to_wav.py [--bundle DIR] [--seconds 10] [--steps N --best-of N] [--json]

Warm times are the medians of several runs in one process, the stages' taken while they work
(`diffsound bench`). The cold start is a fresh process from its start to the file on disk. Steps and
draws are the bundle's unless given. Targets on two cores: 10 s of sound warm in 1 s, 2 s in 0.4 s,
cold in 5 s, at most 1 GB resident.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time

from diffsound.generation.bench import PROMPT, measure


def cold(bundle: str | None, seconds: float, sampling: dict[str, int]) -> tuple[float, float]:
    """Seconds from process start to the file written, and the process's peak memory in MB."""
    code = (
        "import sys, resource; from diffsound.cli.main import run\n"
        "try: run(sys.argv[1:])\n"
        "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", code, "generate", PROMPT, "-o", f"{folder}/x.wav"]
        command += ["--duration", str(seconds), "--seed", "0"]
        for name, option in (("num_inference_steps", "--steps"), ("best_of", "--best-of")):
            command += [option, str(sampling[name])] if name in sampling else []
        command += ["--bundle", bundle] if bundle else []
        start = time.perf_counter()
        result = subprocess.run(command, check=True, capture_output=True, text=True)
        return time.perf_counter() - start, int(result.stderr.split()[-1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--steps", type=int, dest="num_inference_steps")
    parser.add_argument("--best-of", type=int)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    asked = {name: getattr(options, name) for name in ("num_inference_steps", "best_of")}
    sampling = {name: value for name, value in asked.items() if value is not None}
    started = [cold(options.bundle, options.seconds, sampling) for _ in range(2)]
    warm = measure(options.bundle, duration=options.seconds, repeats=options.repeats, **sampling)
    times = warm.stages | {
        "text to WAV, warm": warm.total,
        "text to WAV, cold": min(elapsed for elapsed, _ in started),
    }
    memory = {
        "cold process": max(peak for _, peak in started),
        "this process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    taken = {"steps": warm.steps, "best_of": warm.best_of}
    if options.json:
        made = {"sound_seconds": options.seconds}
        print(json.dumps(made | taken | {"seconds": times, "peak_mb": memory}))
        return
    print(f"{options.seconds:g} s of sound, {warm.steps} steps, best of {warm.best_of}")
    for name, value in times.items():
        print(f"{name:>20}  {value * 1000:8.1f} ms")
    for name, value in memory.items():
        print(f"{'peak, ' + name:>20}  {value:8.0f} MB")


if __name__ == "__main__":
    main()
