"""Two processes over gloo: the loss curve and the weights of one with the doubled batch."""

from __future__ import annotations

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
    "codec": ["loss.adversarial=null", "codec.quantizer.update=gradient"],
    "ar": ["text_dropout=0", "samples.clips=0"],
}
COMMON = ["train.tensorboard=false", "train.max_steps=5", "train.log_steps=1"]


def launch(arguments: list[str], processes: int) -> None:
    """Start `train` in several processes as torchrun would, and wait for them."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    code = (
        "import sys; from diffsound.training.runs import train; "
        "stage, config, data, run, *settings = sys.argv[1:]; "
        "train(stage, config, data, run, settings, quiet=True)"
    )
    source = str(Path(diffsound.__file__).parents[1])
    started = []
    for rank in range(processes):
        environment = {
            **os.environ,
            "PYTHONPATH": source,
            "OMP_NUM_THREADS": "1",
            "ACCELERATE_USE_CPU": "true",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(processes),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(processes),
        }
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", code, *arguments],
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    endings = [process.communicate(timeout=300) for process in started]
    for process, (_, errors) in zip(started, endings, strict=True):
        assert process.returncode == 0, errors


@pytest.mark.parametrize("name", ["codec", "ar"])
def test_two_processes_are_one_with_the_doubled_batch(
    name: str, prepared: Path, tiny_codec: Path, tmp_path: Path
) -> None:
    stage = "codec" if name == "codec" else "decoder"
    config = str(TINY / f"{name}.yaml")
    settings = [*COMMON, *SETTINGS[name]]
    if stage == "decoder":
        settings.append(f"codec={tiny_codec}")
    one, two = tmp_path / "one", tmp_path / "two"
    train(stage, config, prepared, one, [*settings, "train.batch_size=4"], quiet=True)
    launch([stage, config, str(prepared), str(two), *settings, "train.batch_size=2"], 2)
    curves = [
        [entry["loss"] for entry in read_log(run) if entry["kind"] == "train"] for run in (one, two)
    ]
    assert len(curves[0]) == 5
    assert curves[1] == pytest.approx(curves[0], rel=1e-4)
    alone, together = load_export(one)[2], load_export(two)[2]
    for key, tensor in alone.items():
        torch.testing.assert_close(together[key], tensor, rtol=1e-2, atol=1e-4)
