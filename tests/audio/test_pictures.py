"""Pictures of mels, and outlines of waves."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageChops

from diffsound.audio.envelope import envelope
from diffsound.audio.spectrogram import spectrogram_image, spectrogram_png
from diffsound.errors import AudioError, InputError


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


@pytest.mark.parametrize("seconds", [0.5, 9.845, 30.0])
def test_the_time_axis_is_drawn_beneath(seconds: float) -> None:
    mel = np.zeros((80, 50), dtype=np.float32)
    image = spectrogram_image(mel, size=(300, 100), seconds=seconds)
    assert image.size[0] == 300
    axis = image.crop((0, 100, *image.size)).convert("L")
    assert np.asarray(axis).min() < 50
    other = spectrogram_image(mel, size=(300, 100), seconds=2 * seconds)
    assert ImageChops.difference(image, other).getbbox() is not None


def test_a_png_is_written_whole(tmp_path: Path) -> None:
    mel = torch.rand(80, 848)
    spectrogram_png(mel, tmp_path / "mel.png")
    with Image.open(tmp_path / "mel.png") as image:
        assert image.format == "PNG"
        assert ImageChops.difference(image, spectrogram_image(mel)).getbbox() is None
    with pytest.raises(AudioError, match="exists already"):
        spectrogram_png(mel, tmp_path / "mel.png")
    with pytest.raises(AudioError, match="no folder"):
        spectrogram_png(mel, tmp_path / "nowhere" / "mel.png")
    with pytest.raises(AudioError, match=r"\.png"):
        spectrogram_png(mel, tmp_path / "mel.gif")
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("shape", [(0, 5), (1, 80, 5), (5,)])
def test_a_mel_of_the_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="n_mels"):
        spectrogram_image(np.zeros(shape))


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_duration_that_cannot_be_drawn_is_refused(seconds: float) -> None:
    with pytest.raises(InputError, match="duration"):
        spectrogram_image(np.zeros((2, 2)), seconds=seconds)


@given(samples=st.integers(1, 500), points=st.integers(1, 60))
@settings(deadline=None)
def test_the_outline_holds_every_extreme(samples: int, points: int) -> None:
    wave = np.random.default_rng(samples).standard_normal(samples).astype(np.float32)
    outline = envelope(wave, points)
    assert outline.shape == (points, 2)
    assert np.isin(outline, wave).all()
    if points <= samples:
        assert outline[:, 0].min() == wave.min()
        assert outline[:, 1].max() == wave.max()
