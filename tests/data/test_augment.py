"""Augmentations: levels, lengths and pitches measured, not assumed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffsound.audio import mixing
from diffsound.config import parse_config
from diffsound.data import datasets as aug
from diffsound.errors import ConfigError

RATE = 22050


def tone(hz: float, seconds: float = 0.5, level: float = 0.5) -> np.ndarray:
    time = np.arange(int(RATE * seconds)) / RATE
    return (level * np.sin(2 * np.pi * hz * time)).astype(np.float32)


def pitch(wave: np.ndarray) -> float:
    spectrum = np.abs(np.fft.rfft(wave * np.hanning(len(wave))))
    return float(spectrum.argmax() * RATE / len(wave))


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 99))
def test_window_is_a_piece_of_the_wave_or_the_wave_in_silence(length, samples, seed) -> None:
    wave = np.arange(1, length + 1, dtype=np.float32)
    window = aug.random_window(wave, samples, np.random.default_rng(seed))
    assert window.shape == (samples,)
    heard = window[window != 0]
    assert len(heard) == min(length, samples)
    assert np.all(np.diff(heard) == 1)


def test_every_window_position_occurs() -> None:
    rng = np.random.default_rng(0)
    starts = {aug.random_window(np.arange(10.0), 7, rng)[0] for _ in range(200)}
    assert starts == {0.0, 1.0, 2.0, 3.0}


@pytest.mark.parametrize("factor", [0.8, 1.1])
def test_speed_scales_pitch_and_length_alike(factor) -> None:
    faster = aug.change_speed(tone(1000), factor)
    assert len(faster) == pytest.approx(RATE / 2 / factor, abs=2)
    assert pitch(faster) == pytest.approx(1000 * factor, rel=0.005)
    assert mixing.rms(faster) == pytest.approx(mixing.rms(tone(1000)), rel=0.02)


def test_a_change_of_speed_keeps_high_frequencies() -> None:
    noise = np.random.default_rng(0).normal(size=44100).astype(np.float32)
    power = np.abs(np.fft.rfft(aug.change_speed(noise, 1.02)[:40000])) ** 2
    top = power[int(0.8 * len(power)) : int(0.95 * len(power))].mean()
    assert top > 0.8 * power[: len(power) // 2].mean()


def test_random_speeds_span_their_range() -> None:
    rng = np.random.default_rng(0)
    drawn = [aug.draw_speed(0.1, rng) for _ in range(500)]
    assert 1 / 1.1 <= min(drawn) < 0.92
    assert 1.08 < max(drawn) <= 1.1


def test_peak_is_kept_and_quiet_waves_untouched() -> None:
    assert np.abs(mixing.keep_peak(tone(440) * 5)).max() == pytest.approx(mixing.PEAK)
    quiet = tone(440, level=0.2)
    assert mixing.keep_peak(quiet) is quiet
    assert mixing.keep_peak(np.zeros(0, np.float32)).shape == (0,)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 60))
def test_fades_start_and_end_low_and_leave_the_middle(fade_in, fade_out, length) -> None:
    wave = np.ones(length, np.float32)
    faded = mixing.fade(wave, fade_in, fade_out)
    assert np.all(wave == 1)
    middle = faded[min(fade_in, length // 2) : length - min(fade_out, length // 2)]
    assert np.all(middle == 1)
    if length >= 20 and fade_in >= 5:
        assert faded[0] < 0.1
        assert np.all(np.diff(faded[: min(fade_in, length // 2)]) > 0)


def test_reversed_ranges_are_refused() -> None:
    with pytest.raises(ConfigError, match="gain_db must go from low to high"):
        parse_config(aug.AugmentConfig, {"gain_db": [3, -3]})
