"""Onsets are found where they were put, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from diffsound.audio.mixing import event_starts, extent, first_event
from diffsound.evaluation.onsets import COUNTED, ONE_SHOTS, count_events, onsets
from diffsound.generation.pipeline import TextToSound
from diffsound.text.scene import read_scene

RATE = 22050
TIMES = (0.2, 0.75, 1.5)


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    samples = round(seconds * RATE)
    return np.random.default_rng(seed).standard_normal(samples).astype(np.float32)


def events(kind: str) -> np.ndarray:
    """Two seconds with an event at each of TIMES, over a faint hiss."""
    wave = 1e-4 * noise(2.0)
    time = np.arange(round(0.3 * RATE)) / RATE
    shapes = {
        "click": np.exp(-300 * time) * noise(0.3, 1),
        "bark": np.exp(-15 * time) * np.sin(2 * np.pi * 600 * time) * np.minimum(1, time / 0.01),
        "bang": np.exp(-20 * time) * noise(0.3, 2),
    }
    for number, start in enumerate(TIMES):
        at = round(start * RATE)
        wave[at : at + len(time)] += 0.5 * 0.8**number * shapes[kind]
    return wave


@pytest.mark.parametrize("kind", ["click", "bark", "bang"])
def test_events_are_found_where_they_are(kind: str) -> None:
    wave = events(kind)
    assert onsets(wave, RATE) == pytest.approx(TIMES, abs=0.03)
    assert [start / RATE for start in event_starts(wave, RATE)] == pytest.approx(TIMES, abs=0.03)


def test_what_goes_on_has_no_onsets_and_neither_has_silence() -> None:
    tone = np.sin(np.arange(3 * RATE) * 0.2).astype(np.float32)
    for steady in (0.1 * noise(3.0), 0.3 * tone):
        assert len(onsets(steady, RATE)) <= 1  # its own beginning
        assert extent(steady, RATE).goes_on
    silence = np.zeros(RATE, np.float32)
    assert onsets(silence, RATE) == event_starts(silence, RATE) == []


def test_the_first_event_is_cut_out_with_its_decay() -> None:
    event = first_event(events("bang"), RATE)
    assert 0.15 < len(event) / RATE < 0.6
    assert len(event_starts(event, RATE)) == 1
    assert abs(event[0]) < 0.01
    assert abs(event[-1]) < 0.01


def test_the_extent_of_a_clip_leaves_silence_out() -> None:
    bang = extent(events("bang"), RATE)
    assert bang.seconds == pytest.approx(TIMES[-1] - TIMES[0] + 0.17, abs=0.1)
    assert (bang.goes_on, bang.events) == (False, 3)


def test_the_prompts_say_what_they_are_asked_for() -> None:
    for prompt, count in COUNTED:
        (voice,) = read_scene(prompt)
        assert voice.count == count


def test_the_report_compares_what_is_heard_with_what_was_asked(pipeline: TextToSound) -> None:
    report = count_events(pipeline, counted=COUNTED[:1], one_shots=ONE_SHOTS[:1])
    assert [row["asked"] for row in report["prompts"]] == [2, 1]
    right = [float(row["heard"] == row["asked"]) for row in report["prompts"]]
    assert [report["counted"]["value"], report["single"]["value"]] == right
