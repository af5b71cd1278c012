"""Reports: every text that comes from data shows as text, in a real browser, and nothing runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page

from browser_support import HOSTILE, assert_inert
from diffsound.audio.io import write_audio
from diffsound.evaluation.listening import build_test
from diffsound.evaluation.pages import (
    CLEANLINESS,
    ROWS,
    confusion_figure,
    write_evaluation,
    write_follow,
    write_recognition,
)
from diffsound.evaluation.sets import Example, write_examples
from listening_support import make_runs
from metric_support import MEL, RATE, sound


def hostile(number: int = 0) -> str:
    return f"{HOSTILE} {number}"


def sounds(out: Path, *names: str) -> None:
    for number, name in enumerate(names):
        path = out / f"{name}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_audio(path, sound(number), RATE)


def score(value: float | None, low: float | None = None) -> dict[str, Any]:
    high = None if low is None else (value or 0) + 1
    return {
        "name": hostile(), "value": value, "better": "lower", "low": low, "high": high,
        "note": hostile(1),
    }  # fmt: skip


def protocol(**more: Any) -> dict[str, Any]:
    named = {"classifier": hostile(2), "bundle": {"name": hostile(3)}, hostile(4): [hostile(5)]}
    return named | {"mel": MEL.model_dump(mode="json")} | more


def evaluation(out: Path) -> Path:
    sounds(out, "real/a", "vocoder/a", "codec/a", "generated/a.0", "training/t")
    write_examples(out, [Example("a", hostile(6), (hostile(7),))])
    scores = {hostile(8): score(1.5, 0.5), hostile(9): score(None)}
    clip = {
        "id": "a.0", "of": "a", "kl": 1.0, "realism": None, "probability": 0.5, "label": hostile(10)
    }  # fmt: skip
    neighbour = {"id": "a.0", "nearest": "t", "distance": 1.0, "same_recording": hostile(11)}
    report = {
        "title": hostile(12),
        "rows": {row: {"scores": scores, "clips": 1} for row in ROWS},
        "clips": [clip],
        "checks": {
            "clips": 1, "silent": [hostile()], "duplicates": [{"ids": [hostile()]}],
            "unreadable": {hostile(13): hostile(14)}, "copies": [{"id": hostile()}],
            "suspicious_share": 0.5, "expected_share": 0.01, "suspicious_distance": 2.0,
            "nearest": [neighbour],
        },
        "protocol": protocol(real_set=hostile(15), samples_per_text=1),
    }  # fmt: skip
    return write_evaluation(out, report)


def recognition(out: Path) -> Path:
    sounds(out, "real/a", "generated/b.0")
    labels = [hostile(16), hostile(17)]
    shares = {"clips": 1, "top-1": 0.5, "top-5": 1.0}
    entry = {"label": labels[0], "example": "a", "heard_as": {labels[1]: 2, labels[0]: 1}}
    opinion = {
        "rows": {row: {"scores": {hostile(18): score(0.5, 0.1)}, "clips": 1} for row in ROWS},
        "ratios": {row: {hostile(18): 0.5} for row in ROWS if row != "real"},
        "spread": {"ratio": 0.5, "classes": 2},
        "classes": [entry | dict.fromkeys(("real", "codec", "generated"), shares)],
    }
    probe = {"source": hostile(19), "fit": hostile(20), "reference": hostile(21)}
    probe |= {"fitted": 1, "held": 1, "scores": {hostile(18): score(0.5)}}
    clip = {
        "id": "b.0", "asked": labels[0], "heard": labels[1], "prompt": hostile(22),
        "probability": 0.5,
    }  # fmt: skip
    report = opinion | {
        "title": hostile(23),
        "ear": opinion | {"name": hostile(24), "probe": probe},
        "clips": [clip],
        "cleanliness": {row: dict.fromkeys(CLEANLINESS, 0.5) for row in ROWS},
        "protocol": protocol(sentences=1),
    }
    names = ["$a", "<b>"]  # matplotlib would read two dollars as mathematics
    picture = confusion_figure(out / "confusion.png", names, names, {"$real": np.eye(2, dtype=int)})
    return write_recognition(out, report, {"own": picture, "ear": picture})


def following(out: Path) -> Path:
    sounds(out, "generated/a.0", "scenes/a")
    mean = {"mean": 1.0, "low": 0.5, "high": 1.5}
    distance = {
        "pairs": 1, "level_db": mean, "tilt_db_per_octave": mean, "quieter_and_duller": None
    }  # fmt: skip
    row = {"scores": {hostile(26): score(0.5, 0.1)}, "joins": {hostile(27): 0.5}, "clips": 1}
    task = {
        "id": "a", "text": hostile(28), "first": hostile(29), "second": hostile(30),
        "heard": [hostile(31)], "first_present": True, "second_present": False,
    }  # fmt: skip
    report = {
        "title": hostile(32),
        "rows": dict.fromkeys(("scenes", "generated", "chance"), row),
        "false_alarms": {"scenes": 0.1, "generated": 0.2},
        "distance": dict.fromkeys(("scenes", "generated"), distance),
        "numbers": {
            "counted": {"value": 0.5},
            "single": {"value": 1.0},
            "mean_error": 0.5,
            "prompts": [{"text": hostile(35), "asked": 2, "heard": 3, "seconds": 1.5}],
        },
        "tasks": [task],
        "protocol": protocol(**{"present": hostile(33), "in order": hostile(34)}),
    }
    return write_follow(out, report)


@pytest.mark.browser
@pytest.mark.parametrize("make", [evaluation, recognition, following])
def test_hostile_texts_are_inert_in_reports(
    make: Callable[[Path], Path], page: Page, tmp_path: Path
) -> None:
    report = make(tmp_path)
    assert_inert(page, report)
    assert page.locator("audio").count() == page.locator(".takes img").count() > 1
    assert page.locator(".takes img").first.evaluate("image => image.naturalWidth") == 260


@pytest.mark.browser
def test_hostile_sentences_are_inert_in_the_listening_test(page: Page, tmp_path: Path) -> None:
    runs = make_runs(tmp_path, caption=HOSTILE)
    test = build_test(tmp_path / "mos", runs, texts=3)
    page.goto(test.as_uri())
    page.get_by_role("button", name="Begin").click()
    page.wait_for_timeout(200)
    assert page.evaluate("window.hacked") is None
    assert HOSTILE in str(page.locator("#sentence").text_content())
    assert page.locator("[onerror], [onload]").count() == 0


def test_pages_load_nothing_and_carry_a_policy(tmp_path: Path) -> None:
    for make in (evaluation, recognition, following):
        text = make(tmp_path / make.__name__).read_text(encoding="utf-8")
        assert "Content-Security-Policy" in text
        assert "http" not in text.replace("http-equiv", "")


def test_missing_scores_are_shown_in_words(tmp_path: Path) -> None:
    text = evaluation(tmp_path).read_text(encoding="utf-8")
    assert "not available" in text
    assert text.count("<rect") == len(ROWS)  # one metric has values, the other none
