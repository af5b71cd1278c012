"""Loudness and peaks."""

from __future__ import annotations

import io

import numpy as np
import pytest

from diffsound.audio.io import encode_audio, read_audio
from diffsound.audio.mixing import (
    LOUDNESS_CEILING,
    integrated_loudness,
    keep_peak,
    to_loudness,
)

RATE = 22050


def tone(seconds: float, hertz: float = 997.0, amplitude: float = 1.0) -> np.ndarray:
    time = np.arange(round(seconds * RATE)) / RATE
    return (amplitude * np.sin(2 * np.pi * hertz * time)).astype(np.float32)


def test_the_standards_reference_tone() -> None:
    # BS.1770: a full-scale sine of 997 Hz in one channel reads -3.01 LUFS.
    assert integrated_loudness(tone(3), RATE) == pytest.approx(-3.01, abs=0.1)


@pytest.mark.parametrize("seconds", [0.05, 0.2, 0.399])
def test_a_short_tone_is_as_loud_as_a_long_one(seconds: float) -> None:
    assert integrated_loudness(tone(seconds), RATE) == pytest.approx(-3.01, abs=0.5)


@pytest.mark.parametrize("seconds", [0.1, 0.4, 2.0])
@pytest.mark.parametrize("target", [-40.0, -23.0, -14.0])
def test_the_target_is_reached_in_the_written_file(seconds: float, target: float) -> None:
    data = encode_audio(tone(seconds, amplitude=0.05), RATE, loudness=target)
    assert integrated_loudness(read_audio(io.BytesIO(data)), RATE) == pytest.approx(target, abs=0.1)


def test_the_peak_limit_takes_precedence_over_the_loudness() -> None:
    click = np.zeros(RATE, dtype=np.float32)
    click[::2000] = 0.5
    loud = to_loudness(click, RATE, -5.0)
    assert np.abs(loud).max() == pytest.approx(LOUDNESS_CEILING)
    np.testing.assert_allclose(loud / LOUDNESS_CEILING, click / 0.5, atol=1e-6)


@pytest.mark.parametrize("samples", [1, 100, RATE])
def test_silence_stays_silence(samples: int) -> None:
    silence = np.zeros(samples, dtype=np.float32)
    assert integrated_loudness(silence, RATE) == -np.inf
    np.testing.assert_array_equal(to_loudness(silence, RATE, -23.0), silence)


def test_keep_peak_only_lowers() -> None:
    assert np.abs(keep_peak(tone(0.1), 0.5)).max() == pytest.approx(0.5)
    quiet = tone(0.1, amplitude=0.2)
    np.testing.assert_array_equal(keep_peak(quiet, 0.5), quiet)
