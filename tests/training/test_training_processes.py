"""Two processes over gloo: the loss curve and the weights of one with the doubled batch."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import diffsound
from diffsound.training.run_files import checkpoint_steps, read_log
from diffsound.training.runs import train
from diffsound.weights import load_export

TINY = Path(__file__).parents[2] / "configs" / "tiny"

# Nothing drawn per process: codes are learned by gradient, every text is kept.
SETTINGS = {
    "codec": ("codec", ["loss.adversarial=null", "codec.quantizer.update=gradient"]),
    "ar": ("decoder", ["text_dropout=0", "samples.clips=0"]),
}
COMMON = [
    "train.log=none",
    "train.max_steps=5",
    "train.log_steps=1",
    "train.schedule=constant",
]


# One launch trains them one after the other: starting processes is what costs.
LAUNCHED = """
import json, sys
from torch.distributed.tensor import DTensor
from diffsound.training.loop import Trainer
from diffsound.training.runs import train

divided = []
fit = Trainer.fit

def watched(trainer, **options):
    divided.append(all(isinstance(p, DTensor) for p in trainer.team.averaged.parameters()))
    return fit(trainer, **options)

Trainer.fit = watched
runs = json.loads(sys.argv[1])
for stage, config, data, run, settings in runs:
    train(stage, config, data, run, settings, quiet=True)
assert divided == ["train.shard=true" in settings for *_, settings in runs]
"""


Runs = list[tuple[str, str, str, str, list[str]]]


def start(runs: Runs, processes: int) -> list[subprocess.Popen[str]]:
    """Train in several processes, started as torchrun would."""
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
    return started


def launch(runs: Runs, processes: int) -> None:
    """Train in several processes, and wait for them."""
    started = start(runs, processes)
    endings = [process.communicate(timeout=300) for process in started]
    for process, (_, errors) in zip(started, endings, strict=True):
        assert process.returncode == 0, errors


def test_two_processes_equal_one_with_twice_the_batch(
    prepared: Path, tiny_codec: Path, tmp_path: Path
) -> None:
    """Also when the second one is sharded, stopped and resumed."""
    together = []
    for name, (stage, own) in SETTINGS.items():
        config = str(TINY / f"{name}.yaml")
        settings = [*COMMON, *own, *([f"codec={tiny_codec}"] if stage == "decoder" else [])]
        one = tmp_path / f"{name}-one"
        train(stage, config, prepared, one, [*settings, "train.batch_size=4"], quiet=True)
        halved = [*settings, "train.batch_size=2"]
        together.append((stage, config, str(prepared), str(tmp_path / f"{name}-two"), halved))
    stage, config, data, _, settings = together[-1]
    for steps in ("train.max_steps=2", "train.max_steps=5"):
        changes = [*settings, "train.shard=true", steps]
        together.append((stage, config, data, str(tmp_path / "sharded"), changes))
    launch(together, 2)
    pairs = {name: (tmp_path / f"{name}-one", tmp_path / f"{name}-two") for name in SETTINGS}
    pairs["sharded"] = (tmp_path / "ar-one", tmp_path / "sharded")
    for name, runs in pairs.items():
        curves = [
            [entry["loss"] for entry in read_log(run) if entry["kind"] == "train"] for run in runs
        ]
        assert len(curves[0]) == 5
        assert curves[1] == pytest.approx(curves[0], rel=1e-4), name
        alone, both = (load_export(run)[2] for run in runs)
        for key, tensor in alone.items():
            torch.testing.assert_close(both[key], tensor, rtol=1e-2, atol=1e-4)


def test_a_killed_process_ends_the_other_and_the_run_resumes_to_the_same_weights(
    prepared: Path, tmp_path: Path
) -> None:
    stage, own = SETTINGS["codec"]
    settings = [*COMMON, *own, "train.batch_size=2", "train.max_steps=40"]
    settings.append("train.checkpoint_steps=2")

    def runs(name: str) -> Runs:
        config = str(TINY / "codec.yaml")
        return [(stage, config, str(prepared), str(tmp_path / name), settings)]

    first, second = start(runs("killed"), 2)
    try:
        deadline = time.monotonic() + 200
        while not list((tmp_path / "killed").glob("step-*")):
            assert time.monotonic() < deadline
            assert first.poll() is None
            time.sleep(0.01)
        second.kill()
        first.communicate(timeout=200)  # it notices by itself
        assert first.returncode > 0
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()
    assert checkpoint_steps(tmp_path / "killed")[-1] < 40
    launch([*runs("killed"), *runs("whole")], 2)
    killed, whole = (load_export(tmp_path / name)[2] for name in ("killed", "whole"))
    for key, tensor in whole.items():
        assert torch.equal(killed[key], tensor), key
