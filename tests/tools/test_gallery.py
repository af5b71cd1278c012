"""The gallery: a page, pictures and sounds that are the same every time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from diffsound.audio.io import read_audio
from diffsound.model.bundle import Bundle
from gallery import EXAMPLES, ROOT, Example, main, make_gallery

TWO = (Example("a dog barks", 0.5), Example("quantum <b>entanglement</b>", 0.7))


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_two_prompts_twice(knowing: Bundle, tmp_path: Path) -> None:
    bundle = str(knowing.save_pretrained(tmp_path / "bundle", torch.float16))
    page = make_gallery(tmp_path / "one", bundle, TWO)
    assert page == tmp_path / "one" / "gallery.md"
    files = contents(tmp_path / "one")
    assert sorted(files) == [
        "01-a-dog-barks.ogg", "01-a-dog-barks.png",
        "02-quantum-b-entanglement-b.ogg", "02-quantum-b-entanglement-b.png", "gallery.md",
    ]  # fmt: skip
    text = page.read_text(encoding="utf-8")
    assert "well known: “a dog barks”" in text
    assert "far from anything it has heard" in text
    assert "<b>" not in text
    folder = tmp_path / "one" / "gallery"
    assert len(read_audio(folder / "01-a-dog-barks.ogg")) == round(0.5 * 22050)
    with Image.open(folder / "01-a-dog-barks.png") as picture:
        assert picture.size == (480, 120)
    # A file of an earlier gallery does not stay behind.
    (folder / "old.ogg").write_bytes(b"old")
    make_gallery(tmp_path / "one", bundle, TWO)
    assert contents(tmp_path / "one") == files


def test_a_bundle_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--bundle", str(tmp_path / "none"), "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_committed_gallery_is_whole_and_small() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    files = sorted((ROOT / "docs" / "gallery").iterdir())
    assert len(EXAMPLES) == 24
    assert len(files) == 2 * len(EXAMPLES)
    assert all(example.prompt in page for example in EXAMPLES)
    assert all(f"gallery/{path.name}" in page for path in files)
    assert sum(path.stat().st_size for path in files) < 2.5e6
