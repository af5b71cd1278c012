"""The README's numbers and picture are what the committed tools make."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
MEASURED: dict[str, Any] = {
    "machine": "2 cores, some processor",
    "sound_seconds": 10.0,
    "steps": 16,
    "best_of": 3,
    "text_to_wav_seconds": 0.87,
    "cold_start_seconds": 3.9,
    "memory_mb": 640,
    "bundle_mb": 37.7,
    "recognition": {"generated": 0.314, "real": 0.62},
}


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("figures", ROOT / "tools" / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_has_the_committed_figures(figures: ModuleType) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    committed = json.loads((ROOT / "docs" / "figures.json").read_text(encoding="utf-8"))
    assert set(committed) == set(MEASURED)
    assert figures.with_figures(text, committed) == text


def test_the_table_says_what_was_measured_and_nothing_else(figures: ModuleType) -> None:
    shown = figures.table(MEASURED)
    for part in ("10 s of sound", "0.87 s", "3.9 s", "640 MB", "37.7 MB", "31 % (62 %)"):
        assert part in shown
    assert shown.endswith("At 16 steps, the best of 3 draws, on 2 cores, some processor.")
    unmeasured = MEASURED | dict.fromkeys(("text_to_wav_seconds", "recognition"))
    shown = figures.table(unmeasured)
    assert "None" not in shown
    assert "recognises" not in shown
    assert "3.9 s" in shown


def test_recognition_is_read_from_the_bundles_report(figures: ModuleType, tmp_path: Path) -> None:
    assert figures._recognition(tmp_path / "evaluation.json") is None
    rows = {
        name: {"scores": {"top-1": {"value": value}}}
        for name, value in (("generated", 0.31416), ("real", 0.62), ("codec", 0.5))
    }
    (tmp_path / "evaluation.json").write_text(json.dumps({"rows": rows}))
    found = figures._recognition(tmp_path / "evaluation.json")
    assert found == {"generated": 0.314, "real": 0.62}


def test_a_readme_without_marks_is_refused(figures: ModuleType) -> None:
    with pytest.raises(SystemExit, match="figures:start"):
        figures.with_figures("# Diffsound", MEASURED)


def test_the_picture_is_drawn(tmp_path: Path, tiny_folder: Path) -> None:
    tool = ROOT / "tools" / "readme_picture.py"
    command = [sys.executable, tool, "--bundle", tiny_folder, "--out", tmp_path / "p.png"]
    subprocess.run([str(word) for word in command], check=True, timeout=300)
    with Image.open(tmp_path / "p.png") as drawn, Image.open(ROOT / "docs/picture.png") as shown:
        assert drawn.size == shown.size
