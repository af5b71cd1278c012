"""Texts of two events at tiny size: the texts, the measure, the run and its report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from diffsound.audio.io import read_audio
from diffsound.cli.evaluate import app
from diffsound.config import parse_config
from diffsound.data.captions import phrase_table
from diffsound.errors import ConfigError, DataError
from diffsound.evaluation.checks import third_octaves, tilt
from diffsound.evaluation.features import wave_clip
from diffsound.evaluation.follow import (
    JOINS,
    FollowSettings,
    HeardWindows,
    TwoEvents,
    Verdict,
    follow,
    joined,
    judge,
    listen,
    make_tasks,
)
from diffsound.judges.classifier import Classifier
from metric_support import RATE, sound

SETTINGS = FollowSettings(
    prompts=4, distant=2, seconds=3.0, window=1.0, top=1, sampling={"num_inference_steps": 2}
)


@pytest.fixture(scope="module")
def followed(
    tiny_folder: Path, labelled_data: Path, classifier_run: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[str, Any]]:  # fmt: skip
    out = tmp_path_factory.mktemp("followed") / "out"
    return out, follow(tiny_folder, labelled_data, out, SETTINGS, classifier=classifier_run)


def test_texts_are_sentences_of_two_classes() -> None:
    assert joined("rain", "dog", "then") == "rain falls, then a dog barks"
    assert joined("dog", "rain", "while") == "a dog barks while rain falls"
    assert joined("dog", "rain", "followed by") == "a dog barking followed by rain falling"
    assert joined("dog", "rain", "before") == "a dog barks before rain falls"
    assert joined("dog", "gong", "then") == "a dog barking, then the sound of gong"


def test_texts_are_drawn_by_the_seed() -> None:
    labels = list(phrase_table("esc50"))
    tasks = make_tasks(labels, 100, seed=3)
    assert tasks == make_tasks(labels, 100, seed=3)
    assert tasks != make_tasks(labels, 100, seed=4)
    assert all(task.first != task.second for task in tasks)
    assert [task.join for task in tasks[:4]] == list(JOINS)
    assert len({task.text for task in tasks}) > 95
    assert len({task.first for task in tasks}) > 35


HEARD = HeardWindows(
    ("dog", "rain", "bell"),
    np.array([0.0, 0.5, 1.0]),
    np.array([[0.8, 0.15, 0.05], [0.4, 0.5, 0.1], [0.3, 0.6, 0.1]]),
)


@pytest.mark.parametrize(
    ("first", "second", "top", "verdict"),
    [
        ("dog", "rain", 1, Verdict(True, True, True)),
        ("rain", "dog", 1, Verdict(True, True, False)),
        ("dog", "bell", 1, Verdict(True, False, None)),
        ("dog", "bell", 3, Verdict(True, True, True)),
    ],
)
def test_an_event_is_where_the_classifier_is_surest(
    first: str, second: str, top: int, verdict: Verdict
) -> None:
    assert judge(HEARD, TwoEvents("x", "…", "then", first, second), top) == verdict


def test_windows_cover_the_clip_and_leave_silence_out(classifier: Classifier) -> None:
    wave = np.concatenate([sound(1, 1.0), np.zeros(2 * RATE, np.float32), sound(2, 0.7)])
    heard = listen(classifier, wave_clip("clip", wave, RATE), window=0.5, hop=0.5)
    assert heard.starts.tolist() == [0.0, 0.5, 3.0, 3.2]
    assert heard.probabilities.sum(axis=1) == pytest.approx(1.0)
    alone = listen(classifier, wave_clip("part", wave[: RATE // 2], RATE), window=0.5, hop=0.5)
    np.testing.assert_allclose(alone.probabilities[0], heard.probabilities[0], atol=1e-5)
    silent = listen(classifier, wave_clip("x", np.zeros(RATE, np.float32), RATE), window=0.5, hop=1)
    assert silent.present(3) == set()


def test_tilt_is_decibels_an_octave() -> None:
    rng = np.random.default_rng(0)
    white = rng.standard_normal(5 * 22050)
    brown = np.cumsum(white)
    # A third octave of white noise holds more the higher it lies: 3 dB an octave.
    assert tilt(third_octaves(white, 22050)) == pytest.approx(3.0, abs=0.4)
    assert tilt(third_octaves(brown - brown.mean(), 22050)) == pytest.approx(-3.0, abs=0.6)
    assert tilt(np.zeros(20)) == 0.0


def test_scenes_and_sounds_are_judged_by_the_same_measure(
    followed: tuple[Path, dict[str, Any]],
) -> None:
    out, report = followed
    assert list(report["rows"]) == ["scenes", "generated", "chance"]
    for found in report["rows"].values():
        scores = found["scores"]
        assert found["clips"] == 4
        assert 0 <= scores["both present"]["value"] <= scores["an event present"]["value"] <= 1
        assert scores["both, in order"]["value"] <= 1
        assert set(found["joins"]) == set(JOINS)
    assert set(report["false_alarms"]) == {"scenes", "generated"}
    for row in ("scenes", "generated"):
        assert len(list((out / row).glob("*.wav"))) == 4
    assert len(read_audio(out / "scenes" / "two-000.wav", RATE)) == 3 * RATE
    assert report["distance"]["generated"]["pairs"] == 2
    assert report["distance"]["scenes"]["level_db"]["mean"] < -10
    assert report["distance"]["scenes"]["tilt_db_per_octave"]["mean"] < 0
    assert report["distance"]["scenes"]["quieter_and_duller"] == 1.0
    both = [task["first_present"] and task["second_present"] for task in report["tasks"]]
    found = report["rows"]["generated"]["scores"]["both present"]["value"]
    assert found == pytest.approx(np.mean(both))
    assert report == json.loads((out / "report.json").read_text(encoding="utf-8"))
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("<audio") == 4 * 2
    assert all(s.startswith("data:") for s in re.findall(r'(?:src|href)="([^"]{0,12})', page))


def test_an_interrupted_run_continues(
    followed: tuple[Path, dict[str, Any]], tiny_folder: Path, labelled_data: Path,
    classifier_run: Path,
) -> None:  # fmt: skip
    out, report = followed
    kept = out / "generated" / "two-000.0.wav"
    touched = kept.stat().st_mtime_ns
    (out / "generated" / "two-001.0.wav").unlink()
    (out / "scenes" / "two-002.wav").unlink()
    words = ["follow", tiny_folder, "--data", labelled_data, "--out", out, "--prompts", 4]
    words += ["--classifier", classifier_run, "--distant", 2, "--seconds", 3, "--window", 1]
    words += ["--top", 1, "--set", "num_inference_steps=2"]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    assert re.search(r"^scenes: both present \S+, an event present", done.output, flags=re.M)
    assert re.search(r"^scenes, far: level -1\d\S+ dB", done.output, flags=re.M)
    assert kept.stat().st_mtime_ns == touched
    assert json.loads((out / "report.json").read_text(encoding="utf-8"))["rows"] == report["rows"]


def test_data_without_two_classes_is_refused(
    tiny_folder: Path, sound_data: Path, classifier_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="two events need two classes"):
        follow(tiny_folder, sound_data, tmp_path / "out", SETTINGS, classifier=classifier_run)
    with pytest.raises(ConfigError, match="seconds"):
        parse_config(FollowSettings, {"seconds": 1.0})
