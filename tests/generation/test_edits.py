"""Inpaint, extend, vary: kept tokens exact, kept audio untouched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from diffsound.codec.config import CodecConfig, Conv2dConfig, QuantizerConfig
from diffsound.decoder.config import ScheduleConfig
from diffsound.errors import AudioError, InputError
from diffsound.generation.pipeline import TextToSound
from diffsound.generation.sound import Sound
from diffsound.model.bundle import Bundle
from support import make_bundle, tiny_diffsound

RATE = 22050


@pytest.fixture(scope="module")
def clip() -> np.ndarray:
    """Two seconds of two tones and noise."""
    t = np.arange(2 * RATE) / RATE
    noise = np.random.default_rng(0).normal(size=len(t))
    wave = 0.3 * np.sin(2 * np.pi * 300 * t) + 0.2 * np.sin(2 * np.pi * 5000 * t) + 0.02 * noise
    return wave.astype(np.float32)


def tokens_of(pipeline: TextToSound, wave: np.ndarray) -> np.ndarray:
    import torch

    return pipeline.bundle.tokenize(torch.from_numpy(wave)).numpy()


def test_inpaint_keeps_the_rest(pipeline: TextToSound, clip: np.ndarray) -> None:
    (sound,) = pipeline.inpaint(clip, "a bell", 0.5, 1.0, seed=2)
    first, last = round(0.5 * RATE), round(1.0 * RATE)
    assert np.array_equal(sound.wave[:first], clip[:first])
    assert np.array_equal(sound.wave[last:], clip[last:])
    assert not np.allclose(sound.wave[first:last], clip[first:last], atol=1e-3)
    column = 256 * pipeline.bundle.codec.time_stride
    before = tokens_of(pipeline, clip)
    outside = np.ones(before.shape[1], bool)
    outside[first // column : -(-last // column)] = False
    assert np.array_equal(sound.tokens[:, outside], before[:, outside])
    assert not np.array_equal(sound.tokens[:, ~outside], before[:, ~outside])
    assert sound.settings["edit"] == "inpaint"


def test_an_edit_has_the_level_of_its_sound(pipeline: TextToSound) -> None:
    """Tokens know nothing of the level that the wave was brought to."""
    (sound,) = pipeline("rain", duration=2, seed=3, level=-45.0)
    (drawn,) = pipeline("rain", duration=2, seed=3, level=None)
    edited, plain = (pipeline.vary(one, "rain", 0.3, seed=1)[0] for one in (sound, drawn))
    assert edited.gain == sound.gain
    np.testing.assert_allclose(edited.wave / sound.gain, plain.wave / drawn.gain, atol=1e-5)
    (again,) = pipeline.inpaint(edited, "rain", 0.5, 1.5, seed=1)
    assert again.gain == sound.gain


def test_inpaint_has_no_jump_at_the_seams(pipeline: TextToSound, clip: np.ndarray) -> None:
    (sound,) = pipeline.inpaint(clip, "a bell", 0.5, 1.0, seed=2)
    largest = max(np.abs(np.diff(clip)).max(), 0.05)
    for seam in (round(0.5 * RATE), round(1.0 * RATE)):
        around = sound.wave[seam - 20 : seam + 20]
        assert np.abs(np.diff(around)).max() < 1.5 * largest


def test_inpaint_a_band_keeps_the_other_frequencies(
    pipeline: TextToSound, clip: np.ndarray
) -> None:
    (sound,) = pipeline.inpaint(clip, "a bell", 0.2, 1.8, low=3000, seed=2)
    middle = slice(round(0.5 * RATE), round(1.5 * RATE))
    window = np.hanning(RATE)
    before, after = (np.abs(np.fft.rfft(w[middle] * window)) for w in (clip, sound.wave))
    # One-hertz bins: the low tone stays, the high one is replaced.
    assert after[300] == pytest.approx(before[300], rel=0.01)
    assert after[5000] < 0.5 * before[5000]


def test_inpaint_rows_that_are_bands() -> None:
    """With a grid of frequency rows, only the rows of the band are regenerated."""
    codec = CodecConfig(
        backbone=Conv2dConfig(
            width=8,
            multipliers=(1, 1, 1),
            strides=((4, 4), (4, 4)),
            encoder_blocks=1,
            decoder_blocks=1,
            attention_levels=(),
            latent=8,
            norm_groups=4,
        ),
        quantizer=QuantizerConfig(codebook_size=16, code_dim=8),
    )
    pipeline = TextToSound(make_bundle(tiny_diffsound(codec), codec))
    clip = np.random.default_rng(1).normal(size=RATE).astype(np.float32) * 0.1
    before = tokens_of(pipeline, clip)
    (sound,) = pipeline.inpaint(clip, "a bell", 0.0, 1.0, low=6000, seed=2)
    assert np.array_equal(sound.tokens[:4], before[:4])
    assert not np.array_equal(sound.tokens[4], before[4])


def test_extend(pipeline: TextToSound, clip: np.ndarray) -> None:
    (sound,) = pipeline.extend(clip, "rain", 1.5, seed=3)
    assert len(sound.wave) == len(clip) + round(1.5 * RATE)
    kept = len(clip) - round(0.02 * RATE)
    assert np.array_equal(sound.wave[:kept], clip[:kept])
    assert np.abs(sound.wave[len(clip) :]).max() > 0
    full = len(clip) // (256 * pipeline.bundle.codec.time_stride)
    assert np.array_equal(sound.tokens[:, :full], tokens_of(pipeline, clip)[:, :full])


def test_a_weaker_variation_stays_closer_to_the_clip() -> None:
    # The mask matrix carries visible tokens over; an untrained network would not.
    decoder = tiny_diffsound().model_copy(update={"schedule": ScheduleConfig(transition="mask")})
    pipeline = TextToSound(make_bundle(decoder))
    (original,) = pipeline("rain", duration=4, seed=1)
    shares = [
        np.mean(pipeline.vary(original, "rain", strength, seed=9)[0].tokens == original.tokens)
        for strength in (0.1, 1.0)
    ]
    assert shares[0] > shares[1] + 0.2


def test_editing_a_sound_uses_its_tokens(pipeline: TextToSound) -> None:
    (original,) = pipeline("rain", duration=2, seed=1)
    (edited,) = pipeline.inpaint(original, "a bell", 1.0, 1.5, seed=2)
    column = 256 * pipeline.bundle.codec.time_stride
    until = RATE // column
    assert np.array_equal(edited.tokens[:, :until], original.tokens[:, :until])


def test_candidates_of_an_edit(pipeline: TextToSound, clip: np.ndarray) -> None:
    sounds = pipeline.inpaint(clip, "a bell", 0.5, 1.0, seed=2, num_candidates=2)
    assert [s.seed for s in sounds] == [2, 3]
    assert np.array_equal(
        sounds[1].tokens, pipeline.inpaint(clip, "a bell", 0.5, 1.0, seed=3)[0].tokens
    )


def test_file_as_source(pipeline: TextToSound, clip: np.ndarray, tmp_path) -> None:
    source = Sound(clip, RATE, np.zeros((80, 1)), np.zeros((1, 1)), "tone", 0)
    path = source.save(tmp_path / "clip.wav")
    (sound,) = pipeline.extend(path, "rain", 0.5, seed=1)
    assert np.abs(sound.wave[:RATE] - clip[:RATE]).max() < 1e-3


@pytest.mark.parametrize(
    ("start", "end", "low", "high"),
    [
        (-1, 1, None, None),
        (1, 1, None, None),
        (1.5, 1.0, None, None),
        (0, 5, None, None),
        (float("nan"), 1, None, None),
        (0, 1, 5000, 100),
        (0, 1, -5, None),
        (0, 1, None, 1e6),
        (0.5, 0.51, None, None),
    ],
)
def test_bad_regions(pipeline: TextToSound, clip: np.ndarray, start, end, low, high) -> None:
    with pytest.raises(InputError):
        pipeline.inpaint(clip, "a bell", start, end, low=low, high=high)


def test_bad_sources(pipeline: TextToSound, clip: np.ndarray, tmp_path) -> None:
    (tmp_path / "x.wav").write_bytes(b"not audio")
    with pytest.raises(AudioError):
        pipeline.extend(tmp_path / "x.wav", "rain", 1)
    with pytest.raises(AudioError):
        pipeline.extend(tmp_path / "none.wav", "rain", 1)
    for wave in (clip[:100], np.full(RATE, np.nan, np.float32), np.zeros((2, RATE), np.float32)):
        with pytest.raises(InputError):
            pipeline.extend(wave, "rain", 1)
    with pytest.raises(InputError, match="30 s"):
        pipeline.extend(clip, "rain", 29)
    for strength in (0, 1.5, float("nan")):
        with pytest.raises(InputError, match="strength"):
            pipeline.vary(clip, "rain", strength)


def test_ar_cannot_vary(tiny_ar_bundle: Bundle, clip: np.ndarray) -> None:
    with pytest.raises(InputError, match="autoregressive"):
        TextToSound(tiny_ar_bundle).vary(clip, "rain")


@pytest.mark.parametrize("format", ["AIFF", "AU", "CAF", "W64"])
def test_only_the_documented_formats_are_edited(
    pipeline: TextToSound, tmp_path: Path, format: str
) -> None:
    path = tmp_path / "x.wav"
    soundfile.write(path, np.zeros(RATE), RATE, format=format)
    with pytest.raises(AudioError, match="not supported; give a WAV, FLAC, OGG or MP3 file"):
        pipeline.vary(path, "rain", 0.5)
