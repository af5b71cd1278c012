"""A real file system that is full: one line, nothing half-written, and the old state is kept."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile
import torch
from fastapi.testclient import TestClient

from cli_support import typed
from diffsound.audio.io import encode_audio
from diffsound.data.shards import PreparedData
from diffsound.errors import BundleError
from diffsound.generation.pipeline import TextToSound
from diffsound.model.bundle import Bundle
from diffsound.model.checks import verify
from diffsound.training import run_files
from diffsound.weights import load_weights, save_tensors, save_weights
from serving_support import make_app, wait_ready

TINY = Path(__file__).parents[1] / "configs" / "tiny"
RATE = 8000
SIZE = 8 * 2**20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB in memory."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user may not mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path, leave: int = 0) -> None:
    """Use up the disk but for `leave` bytes."""
    status = os.statvfs(disk)
    room = max(0, status.f_bavail * status.f_frsize - leave)
    (disk / "filler").write_bytes(bytes(room))


@pytest.fixture
def sounds(tmp_path: Path) -> Path:
    folder = tmp_path / "sounds"
    folder.mkdir()
    for number, name in enumerate("abcdefghijkl"):
        noise = 0.1 * np.random.default_rng(number).standard_normal(4000)
        soundfile.write(folder / f"noise {name}.wav", noise, RATE)
    return folder


def prepared(sounds: Path, out: Path, *, shards: int = 4) -> int:
    per_shard = 12 // shards
    return typed(
        "data", "prepare", sounds, "--out", out, "--valid-share", "0.3", "--quiet",
        "--clips-per-shard", per_shard, "--engine", "serial",
    )  # fmt: skip


def test_weights_that_do_not_fit_are_an_os_error_and_leave_the_old_file(disk: Path) -> None:
    path = disk / "x.safetensors"
    save_weights(path, {"a": torch.ones(10)})
    fill(disk, leave=8192)
    with pytest.raises(OSError, match="No space left on device"):
        save_tensors({"a": torch.zeros(10**5)}, disk / "y.safetensors")
    with pytest.raises(BundleError, match=r"cannot write .*: No space left on device$"):
        save_weights(path, {"a": torch.zeros(10**5)})
    assert torch.equal(load_weights(path)["a"], torch.ones(10))
    assert {path.name for path in disk.iterdir()} == {"filler", "x.safetensors"}


@pytest.mark.parametrize("leave", [0, 100_000])
def test_a_bundle_that_does_not_fit_is_one_line_and_no_bundle(
    disk: Path, tiny_bundle: Bundle, leave: int
) -> None:
    fill(disk, leave)
    with pytest.raises(BundleError, match=r"^cannot write .*: No space left on device$"):
        tiny_bundle.save_pretrained(disk / "mine")
    with pytest.raises(BundleError):
        Bundle.from_pretrained(disk / "mine")
    assert not list(disk.rglob(".*"))
    (disk / "filler").unlink()
    tiny_bundle.save_pretrained(disk / "mine")
    assert verify(disk / "mine") == []


def test_prepare_keeps_finished_shards_and_continues(
    disk: Path, sounds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepared(sounds, tmp_path / "elsewhere") == 0
    sizes = sorted(path.stat().st_size for path in (tmp_path / "elsewhere").glob("*.tar"))
    fill(disk, leave=sum(sizes[:2]) + 40_000)  # room for two of the four shards
    capsys.readouterr()
    assert prepared(sounds, disk / "out") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "No space left on device; what is finished is kept, run again to continue" in error
    assert not list((disk / "out").glob(".*"))
    finished = {path.stem for path in (disk / "out").glob("clips-*.tar")}
    assert len(finished) in (1, 2, 3)
    (disk / "filler").unlink()
    assert prepared(sounds, disk / "out") == 0
    for path in (tmp_path / "elsewhere").iterdir():
        assert (disk / "out" / path.name).read_bytes() == path.read_bytes(), path.name


def test_batch_keeps_finished_sounds_and_continues(
    disk: Path, tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("rain\nwind\nthunder\nbirds\nwaves\n", encoding="utf-8")

    def batch(out: Path) -> int:
        return typed(
            "batch", prompts, "--out", out, "--bundle", tiny_folder, "--quiet", "--workers", 1
        )

    assert batch(tmp_path / "elsewhere") == 0
    size = max(path.stat().st_size for path in (tmp_path / "elsewhere").glob("*.wav"))
    fill(disk, leave=3 * size)
    capsys.readouterr()
    assert batch(disk / "out") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "No space left on device" in error
    assert not list((disk / "out").glob(".*"))
    for path in (disk / "out").glob("*.wav"):
        assert path.read_bytes() == (tmp_path / "elsewhere" / path.name).read_bytes()
    (disk / "filler").unlink()
    assert batch(disk / "out") == 0
    for path in (tmp_path / "elsewhere").iterdir():
        assert (disk / "out" / path.name).read_bytes() == path.read_bytes(), path.name


def test_an_upload_that_does_not_fit_is_refused_and_the_server_goes_on(
    disk: Path, pipeline: TextToSound, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = encode_audio(np.random.default_rng(0).uniform(-0.1, 0.1, 20 * 48000), 48000, "wav")
    assert len(clip) > 2**20  # smaller ones never become files
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    with TestClient(make_app(pipeline), base_url="http://testserver") as client:
        wait_ready(client)

        def upload() -> httpx.Response:
            return client.post("/v1/edit/vary", data={"prompt": "rain"}, files={"clip": clip})

        assert upload().status_code == 200
        fill(disk)
        answer = upload()
        assert answer.status_code == 503
        detail = "the server cannot take the upload: No space left on device"
        assert answer.json()["detail"] == detail
        made = client.post("/v1/generate", json={"prompt": "rain", "duration": 0.5})
        assert made.status_code == 200
        (disk / "filler").unlink()
        assert upload().status_code == 200
    assert not list(disk.iterdir())


def test_training_ends_in_one_line_with_its_last_checkpoint_and_resumes(
    disk: Path,
    sounds: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = tmp_path / "data"
    assert prepared(sounds, data) == 0
    assert PreparedData.open(data).where(split="valid")

    def train(run: Path) -> int:
        return typed(
            "train", "codec", "--config", TINY / "codec.yaml", "--data", data, "--run", run,
            "--set", "mel.sample_rate=22050", "--set", "train.checkpoint_steps=2",
            "--set", "train.max_steps=6", "--set", "train.validate_steps=2",
        )  # fmt: skip

    save = run_files.save_checkpoint

    def save_and_fill(run: Path, step: int, content: run_files.Checkpoint) -> Path:
        made = save(run, step, content)
        if step == 2:
            fill(disk)
        return made

    monkeypatch.setattr("diffsound.training.loop.save_checkpoint", save_and_fill)
    run = disk / "run"
    capsys.readouterr()
    assert train(run) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].endswith(
        f"cannot save step 6 in {run}: No space left on device; the previous checkpoint is kept"
    )
    assert not any("Traceback" in line for line in lines)
    assert any("step 4" in line and "training continues" in line for line in lines)
    assert run_files.checkpoint_steps(run) == [2]
    run_files.verify(run / "step-00000002")
    assert not list(run.glob(".*"))

    # On a disk that is still full it does not start, and nothing changes.
    assert train(run) == 2
    assert "No space left on device" in capsys.readouterr().err.splitlines()[-1]
    assert run_files.checkpoint_steps(run) == [2]
    run_files.verify(run / "step-00000002")

    monkeypatch.undo()
    (disk / "filler").unlink()
    assert train(run) == 0
    assert train(tmp_path / "whole") == 0
    one, other = (run_files.load_newest(folder) for folder in (run, tmp_path / "whole"))
    assert one is not None
    assert other is not None
    for name, tensors in one.tensors.items():
        for key, tensor in tensors.items():
            assert torch.equal(tensor, other.tensors[name][key]), key
