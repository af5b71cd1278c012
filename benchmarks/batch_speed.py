"""`batch` of many prompts against as many single calls in one process.

    python benchmarks/batch_speed.py [--bundle DIR] [--prompts 100] [--seconds 3] [--quick]

Both sides write the same files, which is checked. Three ways of single calls: a warm pipeline
called once per prompt with all cores; the same with one core; and the command line's `generate`,
which loads the model every time (only a few of them are run, and multiplied).

Target: at least 1.5 times as fast as single calls with all cores; missed, it ends with exit code 1.
`--quick` only shows that it works: its figures say nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from pathlib import Path

import torch

from diffsound.batch.manifest import read_manifest
from diffsound.batch.run import generate_batch, load_pipeline
from diffsound.cli.main import run
from diffsound.data.engines import available_cores
from diffsound.files import sha256
from diffsound.model.bundle import BUNDLED
from diffsound.threads import torch_threads

SCENES = ("a dog barks", "rain on a tin roof", "church bells ring", "a car drives by", "footsteps")
COMMANDS = 3
TARGET = 1.5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="four prompts of half a second")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.prompts, arguments.seconds = 4, 0.5
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bundle = arguments.bundle or BUNDLED
        times = measure(folder, bundle, arguments.prompts, arguments.seconds)
    print(
        f"{arguments.prompts} sounds of {arguments.seconds:g} s, {available_cores()} cores, "
        f"{torch.get_num_threads()} threads"
    )
    for way, seconds in times.items():
        ratio = seconds / times["batch"]
        each = 1000 * seconds / arguments.prompts
        print(f"{way:>28}  {seconds:7.1f} s  {each:7.1f} ms each   {ratio:5.2f}x batch")
    if arguments.json:
        arguments.json.write_text(json.dumps(times, indent=2))
    ratio = times["single calls, all cores"] / times["batch"]
    held = ratio >= TARGET
    print(f"{'PASS' if held else 'FAIL'}  batch {ratio:.2f} times as fast, wanted {TARGET:g}")
    return 0 if held or arguments.quick else 1


def measure(folder: Path, bundle: Path, count: int, seconds: float) -> dict[str, float]:
    """Seconds of each way."""
    prompts = folder / "prompts.jsonl"
    rows = [
        {"prompt": SCENES[i % len(SCENES)], "seed": i, "duration": seconds, "name": f"s{i}"}
        for i in range(count)
    ]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pipeline = load_pipeline(str(bundle), "cpu", None)
    pipeline("warm", duration=seconds, seed=0)

    def singles() -> None:
        for row in rows:
            (sound,) = pipeline(row["prompt"], seed=row["seed"], duration=seconds)
            sound.save(folder / f"{row['name']}.wav")

    times = {}
    started = time.perf_counter()
    generate_batch(prompts, folder / "out", bundle=bundle)
    times["batch"] = time.perf_counter() - started
    started = time.perf_counter()
    singles()
    times["single calls, all cores"] = time.perf_counter() - started
    for entry in read_manifest(folder / "out").values():
        assert sha256(folder / entry["file"]) == entry["sha256"], f"{entry['file']} differs"
    started = time.perf_counter()
    with torch_threads(1):
        singles()
    times["single calls, one core"] = time.perf_counter() - started
    started = time.perf_counter()
    for row in rows[:COMMANDS]:
        command = [row["prompt"], "--seed", str(row["seed"]), "--duration", str(seconds)]
        command += ["--output-dir", str(folder / "commands"), "--bundle", str(bundle), "--quiet"]
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
            run(command)
    times["generate, model reloaded"] = (time.perf_counter() - started) / COMMANDS * count
    return times


if __name__ == "__main__":
    sys.exit(main())
