"""Stereo, sample rates, bit depths and trimmed ends: what a sound is delivered as."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile

from diffsound.audio.mixing import integrated_loudness, level_db, trim_silence, widen
from diffsound.errors import AudioError, InputError
from diffsound.evaluation.checks import third_octaves
from diffsound.evaluation.loops import seam
from diffsound.generation.pipeline import TextToSound
from diffsound.generation.sound import Sound, at_one_level

RATE = 22050


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    samples = round(seconds * RATE)
    return 0.1 * np.random.default_rng(seed).standard_normal(samples).astype(np.float32)


def sound(wave: np.ndarray, **settings: object) -> Sound:
    empty = np.zeros((0, 0))
    return Sound(wave, RATE, empty, empty, "a test", 1, settings)


def read(data: bytes) -> tuple[np.ndarray, soundfile.SoundFile]:
    file = soundfile.SoundFile(io.BytesIO(data))
    return file.read(dtype="float32"), file


def band(wave: np.ndarray, low: float, high: float) -> np.ndarray:
    spectrum = np.fft.rfft(wave, axis=0)
    frequency = np.fft.rfftfreq(len(wave), 1 / RATE)
    spectrum[(frequency < low) | (frequency >= high)] = 0
    return np.fft.irfft(spectrum, len(wave), axis=0)


def test_stereo_is_wide_and_its_sum_is_the_mono_sound() -> None:
    mono = noise(4.0)
    stereo = widen(mono, RATE)
    assert stereo.shape == (len(mono), 2)
    mixed = third_octaves(stereo.mean(axis=1), RATE)
    assert np.abs(mixed - third_octaves(mono, RATE)).max() < 1.0
    for low, high in ((500, 1000), (1000, 2000), (2000, 4000), (4000, 8000), (8000, 11025)):
        left, right = band(stereo, low, high).T
        assert abs(np.corrcoef(left, right)[0, 1]) < 0.7, (low, high)
        assert np.std(left) / np.std(right) == pytest.approx(1, abs=0.12)
    left, right = band(stereo, 20, 80).T
    assert np.corrcoef(left, right)[0, 1] > 0.95, "lows stay in the middle"


def test_a_wide_loop_is_still_a_loop() -> None:
    period = noise(1.0)
    assert seam(widen(period, RATE, ring=True)[:, 0], RATE).worst < 1.25
    data = sound(period, loop=True).encode("wav", channels=2, rate=44100)
    wave, file = read(data)
    assert (file.samplerate, wave.shape) == (44100, (44100, 2))
    assert seam(wave[:, 0], 44100).worst < 1.25
    with pytest.raises(InputError, match="would open the loop"):
        sound(period, loop=True).encode("wav", trim=True)


@pytest.mark.parametrize(
    ("format", "depth", "subtype"),
    [
        ("wav", "16", "PCM_16"),
        ("wav", "24", "PCM_24"),
        ("wav", "32f", "FLOAT"),
        ("flac", "24", "PCM_24"),
        ("ogg", "16", "VORBIS"),
        ("mp3", "16", "MPEG_LAYER_III"),
    ],
)
def test_every_format_at_studio_rate_in_stereo(format: str, depth: str, subtype: str) -> None:
    wave, file = read(sound(noise(0.7)).encode(format, rate=48000, channels=2, bit_depth=depth))
    assert (file.subtype, file.samplerate, file.channels) == (subtype, 48000, 2)
    assert len(wave) == pytest.approx(0.7 * 48000, rel=0.1 if format == "mp3" else 1e-3)
    assert np.abs(wave).max() <= 1


@pytest.mark.parametrize(
    ("format", "output", "message"),
    [
        ("flac", {"bit_depth": "32f"}, "a .flac file cannot hold 32 bits, only 16 or 24"),
        ("mp3", {"rate": 96000}, "MP3 has no sample rate of 96000 Hz"),
        ("wav", {"rate": 4000}, "rate must be a whole number from 8000 to 192000, not 4000"),
        ("wav", {"channels": 6}, "channels must be a whole number from 1 to 2, not 6"),
        ("wav", {"bit_depth": "8"}, "bit_depth must be one of 16, 24, 32f, not '8'"),
    ],
)
def test_what_no_file_can_hold_is_refused(
    format: str, output: dict[str, object], message: str
) -> None:
    with pytest.raises((AudioError, InputError), match=message):
        sound(noise(0.5)).encode(format, **output)  # type: ignore[arg-type]


def test_trim_cuts_the_silence_at_both_ends() -> None:
    quiet = np.zeros(RATE, np.float32)
    wave, _ = read(sound(np.concatenate([quiet, noise(0.5), quiet])).encode("wav", trim=True))
    assert 0.5 <= len(wave) / RATE <= 0.55
    assert len(trim_silence(quiet, RATE, 50)[0]) == RATE, "of silence nothing is left to keep"


def test_loudness_is_of_what_is_delivered() -> None:
    data = sound(noise(2.0)).encode("wav", channels=2, rate=44100, loudness=-23, bit_depth="32f")
    wave, _ = read(data)
    assert integrated_loudness(wave, 44100) == pytest.approx(-23, abs=0.1)


def test_variations_are_takes_of_one_sound_at_one_level(pipeline: TextToSound) -> None:
    shares: list[float] = []
    takes = pipeline.variations(
        "a knock", 3, seed=5, duration=0.6, callback=lambda share, _: shares.append(share)
    )
    assert [take.seed for take in takes] == [5, 6, 7]
    assert len({take.wave.tobytes() for take in takes}) == 3
    levels = [level_db(take.wave, take.sample_rate) for take in takes]
    assert levels == pytest.approx([levels[0]] * 3, abs=0.01)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    again = pipeline.variations("a knock", 3, seed=5, duration=0.6)
    assert all(np.array_equal(a.wave, b.wave) for a, b in zip(takes, again, strict=True))


def test_levels_are_matched_below_full_scale() -> None:
    spike = noise(0.5)
    spike[100] = 0.9
    made = at_one_level([sound(6 * noise(0.5, 1)), sound(spike)])
    assert max(np.abs(one.wave).max() for one in made) <= 0.991
    levels = [level_db(one.wave, RATE) for one in made]
    assert levels[0] == pytest.approx(levels[1], abs=0.01)
