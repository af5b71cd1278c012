"""Bundles from strangers: nothing is written outside, nothing blocks, nothing is allocated."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diffsound.errors import BundleError
from diffsound.model.bundle import Bundle, load_codec
from diffsound.model.checks import copy_bundle, verify


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "copy"))


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def one_line(call: Callable[[], object]) -> str:
    with pytest.raises(BundleError) as caught:
        call()
    message = str(caught.value)
    assert message
    assert "\n" not in message
    assert len(message) < 600
    return message


ESCAPES = [
    "/escaped", "../escaped", "a/../../escaped", "captioner/../x", "./x", "a//b", "", ".", "..",
    "C:\\escaped", "..\\escaped", "x\0y", "a\nb",
]  # fmt: skip


@pytest.mark.parametrize("name", ESCAPES)
def test_a_listed_name_that_leaves_the_folder_is_refused(
    folder: Path, tmp_path: Path, name: str
) -> None:
    info = {"bytes": 1, "sha256": "0" * 64}
    edit(folder, lambda config: config["files"].update({name: info}))
    before = sorted(tmp_path.rglob("*"))
    for call in (
        lambda: copy_bundle(folder, tmp_path / "target"),
        lambda: Bundle.from_pretrained(folder),
        lambda: verify(folder),
    ):
        assert "own folder" in one_line(call)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_copy_does_not_write_through_links_in_its_target(folder: Path, tmp_path: Path) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    target.mkdir()
    (folder / "extra").mkdir()
    (folder / "extra" / "x.json").write_text("{}")
    edit(
        folder,
        lambda config: config["files"].update({"extra/x.json": {"bytes": 2, "sha256": "0" * 64}}),
    )
    (target / "extra").symlink_to(outside)
    assert "link" in one_line(lambda: copy_bundle(folder, target))
    assert list(outside.iterdir()) == []


def test_a_copy_replaces_a_link_instead_of_following_it(folder: Path, tmp_path: Path) -> None:
    outside, target = tmp_path / "precious", tmp_path / "target"
    outside.write_text("precious")
    target.mkdir()
    (target / "README.md").symlink_to(outside)
    copy_bundle(folder, target)
    assert outside.read_text() == "precious"
    assert (target / "README.md").read_bytes() == (folder / "README.md").read_bytes()


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _link(path: Path) -> None:
    outside = path.parent.parent / "outside"
    outside.write_text("{}")
    path.symlink_to(outside)


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the path of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


KINDS = [_fifo, _link, _loop, _socket, Path.mkdir]
NAMES = ["config.json", "README.md", "codec.safetensors", "decoder.safetensors"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", KINDS, ids=lambda kind: kind.__name__.strip("_"))
def test_pipes_and_devices_are_refused_without_blocking(
    folder: Path, tmp_path: Path, make: Callable[[Path], None], name: str
) -> None:
    (folder / name).unlink()
    make(folder / name)
    one_line(lambda: Bundle.from_pretrained(folder))
    one_line(lambda: copy_bundle(folder, tmp_path / "target"))
    assert not (tmp_path / "target" / "config.json").exists()
    if name == "config.json":
        one_line(lambda: verify(folder))
    else:
        assert verify(folder)
    if name in ("config.json", "codec.safetensors"):
        one_line(lambda: load_codec(folder))


def test_a_judge_outside_the_bundle_is_refused(
    ranking_folder: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "copy"))
    (folder / "captioner").symlink_to(ranking_folder / "captioner")
    assert "link" in one_line(lambda: Bundle.from_pretrained(folder))


def test_the_links_of_a_hub_cache_are_followed(tiny_folder: Path, tmp_path: Path) -> None:
    """There every file of a snapshot is a link to a blob of the same model."""
    blobs, snapshot = tmp_path / "model" / "blobs", tmp_path / "model" / "snapshots" / "1"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(tiny_folder.iterdir())):
        shutil.copy(path, blobs / str(number))
        (snapshot / path.name).symlink_to(Path("../../blobs") / str(number))
    assert verify(snapshot) == []
    copy_bundle(snapshot, tmp_path / "copy")
    assert verify(tmp_path / "copy") == []


@pytest.mark.parametrize("card", [b"\xff\xfe broken", b"\x80"], ids=["not UTF-8", "one wrong byte"])
def test_a_card_that_is_no_text_is_refused(folder: Path, card: bytes) -> None:
    (folder / "README.md").write_bytes(card)
    edit(folder, lambda config: config["files"].pop("README.md"))
    assert "README.md" in one_line(lambda: Bundle.from_pretrained(folder))
    assert "README.md" in verify(folder)[0]


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 100_000, '{"format_version": ' + "9" * 5000 + "}"],
    ids=["deep list", "deep object", "huge integer"],
)
def test_json_that_breaks_a_parser_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    assert "config.json" in one_line(lambda: Bundle.from_pretrained(folder))
    assert "config.json" in one_line(lambda: verify(folder))


def test_loading_does_not_import_torchs_compiler() -> None:
    """It takes seconds; building on the meta device imports it for many an operation."""
    code = (
        "import sys; from diffsound.model.bundle import Bundle; from diffsound.judges import *; "
        "judges = Bundle.from_pretrained().judges; "
        "[load_judge(kind, folder) for kind, folder in judges.items()]; "
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def _set(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    *parents, last = key.split(".")

    def change(config: dict[str, Any]) -> None:
        for parent in parents:
            config = config[parent]
        config[last] = value

    return change


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("codec.model.backbone.strides", [10**6]),
        ("codec.model.quantizer.codebook_size", 10**9),
        ("codec.mel.n_mels", 10**12),
        ("vocoder.model", {"kind": "griffin_lim", "iterations": 10**12}),
        # Within bounds, and still more than the weights hold: terabytes, if they were allocated.
        ("codec.model.backbone.widths", [65_536, 65_536]),
        ("decoder.model.width", 65_536),
        ("vocoder.model.width", 65_536),
        ("vocoder.model.layers", 256),
    ],
)
def test_config_bombs_take_no_memory(folder: Path, key: str, value: object) -> None:
    """In a process that may take 1 GB more than it has; verify says the same as load."""
    edit(folder, _set(key, value))
    code = (
        "import resource, sys\n"
        "from diffsound.errors import BundleError\n"
        "from diffsound.model.bundle import Bundle\n"
        "from diffsound.model.checks import verify\n"
        "size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size + 2**30,) * 2)\n"
        "try: Bundle.from_pretrained(sys.argv[1])\n"
        "except BundleError as error: message = str(error)\n"
        "try: problems = verify(sys.argv[1])\n"
        "except BundleError as error: problems = [str(error)]\n"
        "assert problems == [message], problems\n"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, timeout=60)
