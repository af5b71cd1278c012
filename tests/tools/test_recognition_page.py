"""The page of recognised and unrecognised classes, from a report and its sounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diffsound.audio.io import write_audio
from diffsound.audio.mel import MelConfig
from recognition_page import CLEAN, ROOT, main, make_page


def score(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.1, "high": value + 0.1}


def write_report(folder: Path) -> None:
    """Twelve classes, of which the later ones are recognised better."""
    names = [f"class {number:02d}" for number in range(12)]
    rng = np.random.default_rng(0)
    for place in ("real", "generated"):
        (folder / place).mkdir(parents=True)
        for name in names:
            wave = rng.uniform(-0.3, 0.3, 4000).astype(np.float32)
            write_audio(folder / place / f"{name}.wav", wave, 22050)
    rows = {row: {"scores": {"top-1": score(0.5), "top-5": score(0.8)}, "clips": 12}
            for row in ("real", "vocoder", "codec", "generated")}  # fmt: skip
    report: dict[str, Any] = {
        "rows": rows,
        "cleanliness": {"generated": dict.fromkeys(CLEAN, 0.125) | {"offset_db": None}},
        "classes": [
            {
                "label": name,
                "example": name,
                "real": {"top-1": 1.0},
                "generated": {"top-1": number / 12},
                "heard_as": {"rain": 2},
            }
            for number, name in enumerate(names)
        ],
        "clips": [
            {"id": name, "asked": name, "prompt": f"a {name}", "heard": "rain"} for name in names
        ],
        "protocol": {
            "sentences": 12,
            "settings": {"seconds": 5.0},
            "mel": MelConfig().model_dump(mode="json"),
        },
    }
    (folder / "report.json").write_text(json.dumps(report))
    (folder / "confusion.png").write_bytes(b"picture")


def test_the_ten_worst_are_shown(tmp_path: Path) -> None:
    write_report(tmp_path / "report")
    out = tmp_path / "docs"
    (out / "recognition").mkdir(parents=True)
    (out / "recognition" / "old.png").write_bytes(b"old")
    text = make_page(tmp_path / "report", out).read_text(encoding="utf-8")
    shown = [number for number in range(12) if f"**class {number:02d}**" in text]
    assert shown == list(range(10))
    assert "| generated | 12 | 0.500 [0.40, 0.60] | 0.800 [0.70, 0.90] |" in text
    assert "“a class 03”, heard as rain" in text
    pictures = sorted(path.name for path in (out / "recognition").iterdir())
    assert pictures == [*(f"class-{number:02d}.png" for number in range(10)), "confusion.png"]


def test_an_outside_ear_has_a_table_of_its_own(tmp_path: Path) -> None:
    write_report(tmp_path / "report")
    path = tmp_path / "report" / "report.json"
    report = json.loads(path.read_text())
    scores = {"top-1": score(0.25), "top-5": score(0.5), "Fréchet distance": score(6.5)}
    probe = {"fit": "1, 2, 3", "fitted": 90, "held": 30, "scores": scores}
    rows = {"generated": {"scores": scores, "clips": 12}}
    report["ear"] = {"name": "ear.onnx", "probe": probe, "rows": rows}
    path.write_text(json.dumps(report))
    text = make_page(tmp_path / "report", tmp_path).read_text(encoding="utf-8")
    assert "By an outside ear, `ear.onnx`" in text
    assert "| generated | 12 | 0.25 | 0.5 | 6.5 |" in text
    assert "| real clips its probe was not fitted on | 30 | 0.25 | 0.5 | 6.5 |" in text


def test_no_report_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--out", str(tmp_path / "docs")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "docs").exists()


def test_the_committed_page_is_of_the_bundled_model() -> None:
    """Its figures are those of the report beside the bundle."""
    path = ROOT / "src" / "diffsound" / "assets" / "small" / "evaluation.json"
    found = json.loads(path.read_text(encoding="utf-8"))["rows"]["generated"]["scores"]
    page = (ROOT / "docs" / "recognition.md").read_text(encoding="utf-8")
    assert f"| generated | 500 | {found['top-1']['value']:.3f} [" in page
