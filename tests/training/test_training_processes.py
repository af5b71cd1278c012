"""Two processes over gloo: the loss curve and the weights of one with the doubled batch."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import diffsound
from diffsound.training.export import load_export
from diffsound.training.logs import read_log
from diffsound.training.runs import train

TINY = Path(__file__).parents[2] / "configs" / "tiny"

# Nothing drawn per process: codes are learned by gradient, every text is kept.
SETTINGS = {
    "codec": ("codec", ["loss.adversarial=null", "codec.quantizer.update=gradient"]),
    "ar": ("decoder", ["text_dropout=0", "samples.clips=0"]),
}
COMMON = ["train.tensorboard=false", "train.max_steps=5", "train.log_steps=1"]


# One launch trains them one after the other: starting processes is what costs.
LAUNCHED = """
import json, sys
from diffsound.training.runs import train

for stage, config, data, run, settings in json.loads(sys.argv[1]):
    train(stage, config, data, run, settings, quiet=True)
"""


def launch(runs: list[tuple[str, str, str, str, list[str]]], processes: int) -> None:
    """Train in several processes, started as torchrun would, and wait for them."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    started = []
    for rank in range(processes):
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(diffsound.__file__).parents[1]),
            "OMP_NUM_THREADS": "1",
            "ACCELERATE_USE_CPU": "true",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(processes),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(processes),
        }
        command = [sys.executable, "-c", LAUNCHED, json.dumps(runs)]
        started.append(
            subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        )
    endings = [process.communicate(timeout=300) for process in started]
    for process, (_, errors) in zip(started, endings, strict=True):
        assert process.returncode == 0, errors


def test_two_processes_are_one_with_the_doubled_batch(
    prepared: Path, tiny_codec: Path, tmp_path: Path
) -> None:
    together = []
    for name, (stage, own) in SETTINGS.items():
        config = str(TINY / f"{name}.yaml")
        settings = [*COMMON, *own, *([f"codec={tiny_codec}"] if stage == "decoder" else [])]
        one = tmp_path / f"{name}-one"
        train(stage, config, prepared, one, [*settings, "train.batch_size=4"], quiet=True)
        halved = [*settings, "train.batch_size=2"]
        together.append((stage, config, str(prepared), str(tmp_path / f"{name}-two"), halved))
    launch(together, 2)
    for name in SETTINGS:
        runs = [tmp_path / f"{name}-{count}" for count in ("one", "two")]
        curves = [
            [entry["loss"] for entry in read_log(run) if entry["kind"] == "train"] for run in runs
        ]
        assert len(curves[0]) == 5
        assert curves[1] == pytest.approx(curves[0], rel=1e-4), name
        alone, both = (load_export(run)[2] for run in runs)
        for key, tensor in alone.items():
            torch.testing.assert_close(both[key], tensor, rtol=1e-2, atol=1e-4)
