"""Two processes with one thread each against one process with two threads, on the same batch.

    python benchmarks/train_processes.py [--steps 12] [--batch 16]

Both train the small decoder on the same synthetic clips; the processes halve the batch and talk
over gloo. Printed is the ratio of their clips/s (at least 0.9). Needs two free cores.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from common import CONFIGS, check, synthetic_data, untrained_codec
from diffsound.training.run_files import read_log

LAUNCH = (
    "import sys; from diffsound.training.runs import train; train(*sys.argv[1:5], sys.argv[5:])"
)


def speed(run: Path, data: Path, settings: list[str], processes: int) -> float:
    """Clips a second, all processes together, without the first steps."""
    threads = "2" if processes == 1 else "1"
    config = str(CONFIGS / "small" / "decoder.yaml")
    command = [sys.executable, "-c", LAUNCH, "decoder", config, str(data), str(run), *settings]
    started = []
    for rank in range(processes):
        environment = {**os.environ, "OMP_NUM_THREADS": threads}
        if processes > 1:
            environment |= {
                "ACCELERATE_USE_CPU": "true",
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": "29511",
                "WORLD_SIZE": str(processes),
                "LOCAL_WORLD_SIZE": str(processes),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
            }
        started.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
    if any(process.wait() for process in started):
        raise SystemExit("a training process failed")
    entries = [entry for entry in read_log(run) if entry["kind"] == "train"][1:]
    return sum(entry["clips_per_s"] for entry in entries) / len(entries)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data, codec = synthetic_data(folder / "data"), untrained_codec(folder / "codec")
        common = [f"codec={codec}", f"train.max_steps={options.steps}", "train.log_steps=4"]
        common += ["train.log=none", "train.validate_steps=null", "grids.wider=0"]
        one = speed(folder / "one", data, [*common, f"train.batch_size={options.batch}"], 1)
        halved = f"train.batch_size={options.batch // 2}"
        two = speed(folder / "two", data, [*common, halved], 2)
    print(f"{two:.1f} and {one:.1f} clips/s")
    good = check("two processes / one with two threads", two / one, at_least=0.9)
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
