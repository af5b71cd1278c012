"""The page's examples: recognised, small, and the same every time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diffsound.audio.io import read_audio
from diffsound.serving.app import WEB
from page_examples import GROUPS, MANIFEST, OUT, main


def test_the_committed_examples_are_whole_and_small() -> None:
    assert OUT == WEB / "examples"
    manifest = json.loads((OUT / MANIFEST).read_text(encoding="utf-8"))
    examples = manifest["examples"]
    assert len(examples) == len(GROUPS) == 6
    assert {path.name for path in OUT.iterdir()} == {MANIFEST, *(one["file"] for one in examples)}
    for example, group in zip(examples, GROUPS, strict=True):
        assert example["prompt"] in {idea.prompt for idea in group}
        wave = read_audio(OUT / example["file"])
        assert len(wave) == pytest.approx(22050 * example["duration"], abs=2)
        assert max(example["peaks"]) == 1
    assert sum(path.stat().st_size for path in OUT.iterdir()) < 250_000


def test_a_bundle_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--bundle", str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_prompts_avoid_what_the_model_does_badly() -> None:
    words = " ".join(idea.prompt for group in GROUPS for idea in group)
    assert not any(word in words for word in ("creak", "rain", "clap", "bell", "train"))
