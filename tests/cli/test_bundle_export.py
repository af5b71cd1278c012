"""`diffsound bundle export`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli_support import diffsound
from diffsound.errors import BundleError
from diffsound.model.checks import copy_bundle, verify


def test_export_int8_and_run(tmp_path: Path, tiny_folder: Path) -> None:
    done = diffsound(
        "bundle", "export", str(tiny_folder), "--onnx", "--int8", "--out", "fast", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith("fast/onnx: codec ")
    config = json.loads((tmp_path / "fast" / "onnx" / "export.json").read_text())
    assert config["int8"] is True
    assert set(config["files"]) == {"decoder.onnx", "codec.onnx", "vocoder.onnx"}
    assert verify(tmp_path / "fast") == []
    done = diffsound("rain", "-b", "fast", "--backend", "onnx", "-o", "x.wav", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x.wav").stat().st_size > 40_000
    # A folder that holds a bundle is left alone; a bundle without an export says what to do.
    for arguments, message in (
        (("bundle", "export", "fast", "--onnx", "--out", "fast"), "already holds a bundle"),
        (("bundle", "export", "fast"), "--onnx"),
        (("rain", "-b", str(tiny_folder), "--backend", "onnx"), "bundle export"),
    ):
        done = diffsound(*arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert message in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_copied_bundle_has_the_same_files(tmp_path: Path, tiny_folder: Path) -> None:
    copy_bundle(tiny_folder, tmp_path / "copy")
    assert {p.name: p.read_bytes() for p in (tmp_path / "copy").iterdir()} == {
        p.name: p.read_bytes() for p in tiny_folder.iterdir() if p.is_file()
    }
    with pytest.raises(BundleError, match="cannot copy"):
        copy_bundle(tiny_folder, Path("/proc/copy"))
