"""The study of figure 2: what is done to clips, and that the curves rise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffsound.audio.mixing import rms
from diffsound.errors import InputError
from diffsound.evaluation import compare
from diffsound.evaluation.compare import (
    LEVELS,
    add_noise,
    add_sound,
    draw_study,
    is_rising,
    mask_time,
    study,
)
from diffsound.evaluation.features import wave_clip
from diffsound.judges.classifier import Classifier
from metric_support import RATE, clip, sound


@given(st.floats(-20, 40), st.integers(0, 100))
def test_noise_has_the_level_asked_for(snr: float, seed: int) -> None:
    wave = sound(1)
    added = add_noise(wave, snr, np.random.default_rng(seed)) - wave
    assert 20 * np.log10(rms(wave) / rms(added)) == pytest.approx(snr, abs=0.1)


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 100))
def test_masks_grow_and_never_move(one: float, two: float, seed: int) -> None:
    wave = np.ones(8000, np.float32)
    less, more = (
        mask_time(wave, share, np.random.default_rng(seed)) == 0 for share in sorted((one, two))
    )
    assert less.mean() == pytest.approx(min(one, two), abs=0.003)
    assert (less & ~more).sum() <= 16  # rounding to samples at the edges of eight stretches


def test_another_sound_has_the_level_asked_for_and_the_waves_length() -> None:
    wave, other = sound(1), sound(2, seconds=0.9)
    disturbed = add_sound(wave, other, 6.0)
    expected = other[: len(wave)]
    expected = wave + expected * np.float32(rms(wave) / rms(expected) / 10 ** (6 / 20))
    np.testing.assert_allclose(disturbed, expected, rtol=1e-5, atol=1e-6)


def test_silence_gets_noise_at_minus_60_db_and_no_silent_sound() -> None:
    silence = np.zeros(4000, np.float32)
    rng = np.random.default_rng(0)
    assert add_sound(silence, silence, 0.0) is silence
    assert 20 * np.log10(rms(add_noise(silence, 0.0, rng))) == pytest.approx(-60, abs=0.1)


def test_rising_means_every_step() -> None:
    assert is_rising([0, 1, 3])
    assert not is_rising([0, 2, 2])
    assert not is_rising([0, 3, 1, 9])


def test_figure_two_rises_and_is_drawn(
    classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    inf = float("inf")
    fewer = {"noise": (inf, 20.0, 0.0), "mask": (0.0, 0.3, 0.75), "other": (inf, 10.0, -10.0)}
    monkeypatch.setattr(compare, "LEVELS", fewer)
    clips = [clip(i) for i in range(24)]
    broken = wave_clip("broken", np.zeros(0, np.float32), RATE)
    others = [clip(i) for i in range(100, 110)]
    found = study(classifier, [*clips, broken], others, seconds=0.5)
    assert found["clips"] == 24
    assert len(found["points"]) == 9
    assert found["points"][0]["amount"] is None
    for kind in ("noise", "mask", "other"):
        for metric in ("fid", "kl"):
            curve = [point[metric] for point in found["points"] if point["kind"] == kind]
            assert curve[0] == pytest.approx(0, abs=1e-4)
            assert found["rising"][kind][metric], (kind, metric, curve)
    figure = tmp_path / "figure-2.png"
    draw_study(figure, json.loads(json.dumps(found)), classifier, clips[0], others, seconds=0.5)
    with Image.open(figure) as picture:
        assert picture.width > 1000


def test_too_little_to_study_is_refused(classifier: Classifier) -> None:
    with pytest.raises(InputError, match="at least 2 clips"):
        study(classifier, [clip(1)], [clip(2)])
    with pytest.raises(InputError, match="only 1 of 2 clips"):
        study(classifier, [clip(1), wave_clip("no", np.zeros(0, np.float32), RATE)], [clip(2)])


def test_levels_start_without_disturbance_and_grow() -> None:
    assert LEVELS["noise"][0] == LEVELS["other"][0] == float("inf")
    assert LEVELS["mask"][0] == 0.0
    assert is_rising(LEVELS["mask"])
    for kind in ("noise", "other"):
        assert is_rising([-value for value in LEVELS[kind]])
