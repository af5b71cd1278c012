"""Faults that are put in are found."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from diffsound.evaluation import cleanliness
from diffsound.evaluation.cleanliness import (
    Columns,
    Facts,
    band_edges,
    spectrum_distance,
    summary,
    third_octaves,
)

RATE = 16000
HOP, STRIDE = 160, 10  # columns of a tenth of a second


def levels(wave: Tensor) -> Tensor:
    """A mel of one band: the level of every hop, wave [1, samples] to [1, 1, L]."""
    whole = torch.nn.functional.pad(wave, (0, -wave.shape[1] % HOP))
    return whole.unflatten(1, (-1, HOP)).square().mean(2).sqrt()[:, None] * 5


def measure(wave: np.ndarray, rate: int) -> Facts:
    return cleanliness.measure(wave, rate, Columns(levels, STRIDE))


def noise(seed: int = 0, level: float = 0.1, seconds: float = 2.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (level * rng.standard_normal(round(seconds * RATE))).astype(np.float32)


def test_a_clean_sound() -> None:
    facts = measure(noise(), RATE)
    assert not facts.clipped
    assert facts.silence == 0.0
    assert facts.offset_db < -50
    assert facts.loudness is not None
    assert facts.spectrum.sum() == pytest.approx(1.0)


def test_faults_are_found() -> None:
    assert measure(np.clip(noise(level=1.0), -1, 1), RATE).clipped
    lonely = noise()
    lonely[100] = 1.0
    assert not measure(lonely, RATE).clipped, "one sample at full scale is a peak"
    assert measure(noise() + 0.1, RATE).offset_db == pytest.approx(-20, abs=0.2)
    half = noise()
    half[: len(half) // 2] = 0
    assert measure(half, RATE).silence == pytest.approx(0.5, abs=0.01)
    silent = measure(np.zeros(RATE, dtype=np.float32), RATE)
    assert silent.loudness is None
    assert silent.silence == 1.0
    assert measure(np.ones(2, dtype=np.float32), RATE).silence == 0.0


def test_a_sound_that_is_cut_is_told_from_one_that_dies_away() -> None:
    time = np.arange(2 * RATE) / RATE
    assert not measure(noise() * np.exp(-6 * time).astype(np.float32), RATE).cut
    cut = noise()
    cut[RATE:] = 0
    assert measure(cut, RATE).cut
    assert not measure(noise(), RATE).cut, "what goes on is ended by the clip"
    assert not measure(np.zeros(RATE, dtype=np.float32), RATE).cut
    decaying = noise() * np.exp(-6 * time).astype(np.float32)
    decaying[RATE // 5 :] = 0
    assert measure(decaying, RATE).cut


def test_a_tone_lies_in_its_band() -> None:
    wave = np.sin(2 * np.pi * 1000 * np.arange(RATE) / RATE).astype(np.float32)
    edges = band_edges(RATE)
    (place,) = np.flatnonzero((edges[:-1] <= 1000) & (edges[1:] > 1000))
    spectrum = third_octaves(wave, RATE)
    assert spectrum.argmax() == place
    assert spectrum[place] > 0.9


def test_the_spectrum_ignores_level_and_hears_colour() -> None:
    plain, loud = third_octaves(noise(), RATE), third_octaves(noise(1, level=0.4), RATE)
    assert spectrum_distance(plain, loud) < 1.5
    dull = third_octaves(np.convolve(noise(2), np.ones(8) / 8, mode="same"), RATE)
    assert spectrum_distance(plain, dull) > 3
    doubled = plain * np.where(np.arange(len(plain)) == 3, 4.0, 1.0)
    expected = 10 * np.log10(4) / np.sqrt(len(plain))
    assert spectrum_distance(plain, doubled) == pytest.approx(expected)


def test_a_set_against_the_real_one() -> None:
    real = {"dog": [measure(noise(seed), RATE) for seed in range(4)]}
    made = {"dog": [measure(0.5 * noise(9), RATE), measure(np.zeros(RATE, np.float32), RATE)]}
    truth, found = summary(real, None), summary(made, real)
    assert truth["spectrum_distance_db"] < 1.5
    assert truth["loudness_spread_lu"] < 0.5
    assert found["silent_clips"] == 1
    assert found["silence_share"] == 0.5
    assert found["loudness_lufs"] == pytest.approx(truth["loudness_lufs"] - 6, abs=0.3)
    assert summary({}, real)["clipped_share"] is None


def test_columns_that_step_are_found() -> None:
    rng = np.random.default_rng(3)
    steps = np.repeat(rng.uniform(0.5, 1.5, 20), HOP * STRIDE).astype(np.float32)
    steady, stepping = (summary({"rain": [measure(w, RATE)]}, None)["seam_ratio"]
                        for w in (noise(), noise() * steps))  # fmt: skip
    assert steady == pytest.approx(1.0, abs=0.4)
    assert stepping > 3
    assert summary({}, {})["seam_ratio"] is None
