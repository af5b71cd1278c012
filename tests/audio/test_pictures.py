"""Pictures of mels, and outlines of waves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ImageChops

from diffsound.audio.spectrogram import envelope, spectrogram_figure, spectrogram_image
from diffsound.errors import InputError


def luminance(level: float) -> int:
    mel = np.full((4, 4), level, dtype=np.float32)
    return spectrogram_image(mel, size=(4, 4)).convert("L").getpixel((1, 1))


def test_low_frequencies_are_at_the_bottom_and_time_runs_right() -> None:
    mel = torch.zeros(80, 100)
    mel[:10, 60:] = 1.0
    image = spectrogram_image(mel, size=(100, 80)).convert("L")
    assert image.size == (100, 80)
    assert image.getpixel((90, 75)) > 200
    assert image.getpixel((90, 5)) < 10
    assert image.getpixel((10, 75)) < 10


def test_louder_is_lighter() -> None:
    levels = [luminance(level) for level in np.linspace(0, 1, 33)]
    assert all(low < high for low, high in itertools.pairwise(levels))
    assert luminance(-3.0) == levels[0]
    assert luminance(9.0) == luminance(float("inf")) == levels[-1]


RATE = 22050
LEFT, TOP, RIGHT, BOTTOM = 150, 80, 1650, 640  # of the plot in a figure


def dark_ticks(line: np.ndarray) -> np.ndarray:
    """Where ticks are on a line of pixels just outside the plot."""
    return np.flatnonzero(line < 100)


@pytest.mark.parametrize("frequency", [250, 500, 1000, 2000, 4000, 8000])
def test_a_tone_is_drawn_at_its_frequency_s_tick(frequency: int) -> None:
    time = np.arange(2 * RATE) / RATE
    figure = spectrogram_figure(0.5 * np.sin(2 * np.pi * frequency * time), RATE).convert("L")
    pixels = np.asarray(figure).astype(int)
    brightest = TOP + int(pixels[TOP + 3 : BOTTOM - 3, (LEFT + RIGHT) // 2].argmax()) + 3
    assert np.abs(dark_ticks(pixels[TOP:BOTTOM, LEFT - 6]) + TOP - brightest).min() <= 4


def test_a_click_is_drawn_at_its_time_s_tick() -> None:
    wave = np.zeros(4 * RATE, np.float32)
    wave[1 * RATE] = 0.9
    pixels = np.asarray(spectrogram_figure(wave, RATE).convert("L")).astype(int)
    brightest = LEFT + 3 + int(pixels[(TOP + BOTTOM) // 2, LEFT + 3 : RIGHT - 3].argmax())
    assert abs(brightest - (LEFT + (RIGHT - LEFT) / 4)) <= 6
    assert np.abs(dark_ticks(pixels[BOTTOM + 6, LEFT:RIGHT]) + LEFT - brightest).min() <= 6


def test_silence_is_dark_and_a_quiet_sound_is_not() -> None:
    noise = np.random.default_rng(0).standard_normal(RATE).astype(np.float32)
    silent, quiet = (
        np.asarray(spectrogram_figure(level * noise, RATE).convert("L"))[TOP + 5 : BOTTOM - 5]
        for level in (0.0, 0.01)
    )
    assert silent[:, LEFT + 5 : RIGHT - 5].max() < 10
    assert quiet[:, LEFT + 5 : RIGHT - 5].mean() > 100


def test_a_long_title_is_shortened_to_the_plot() -> None:
    wave = np.zeros(RATE, np.float32)
    untitled, short, long = (
        spectrogram_figure(wave, RATE, title) for title in ("", "rain", "a dog barks " * 40)
    )
    assert ImageChops.difference(untitled, short).getbbox() is not None
    left, _, right, bottom = ImageChops.difference(untitled, long).getbbox()
    assert left >= LEFT - 2
    assert right <= RIGHT + 2
    assert bottom <= TOP


@pytest.mark.parametrize("samples", [1, 100, 30 * RATE])
def test_any_length_is_drawn(samples: int) -> None:
    assert spectrogram_figure(np.full(samples, 0.1), RATE).size == (1880, 760)


@pytest.mark.parametrize("shape", [(0,), (2, 100)])
def test_a_wave_of_the_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="samples"):
        spectrogram_figure(np.zeros(shape), RATE)


@pytest.mark.parametrize("shape", [(0, 5), (1, 80, 5), (5,)])
def test_a_mel_of_the_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="n_mels"):
        spectrogram_image(np.zeros(shape))


@given(samples=st.integers(1, 500), points=st.integers(1, 60))
@settings(deadline=None)
def test_the_envelope_contains_every_extreme(samples: int, points: int) -> None:
    wave = np.random.default_rng(samples).standard_normal(samples).astype(np.float32)
    outline = envelope(wave, points)
    assert outline.shape == (points, 2)
    assert np.isin(outline, wave).all()
    if points <= samples:
        assert outline[:, 0].min() == wave.min()
        assert outline[:, 1].max() == wave.max()
