"""One clip through preparation, good and bad files alike."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import example, given
from hypothesis import strategies as st

from diffsound.audio.mixing import integrated_loudness
from diffsound.data.clip import (
    PrepareSettings,
    encode_flac,
    loop_to,
    prepare_clip,
    to_int16,
    trim_silence,
)
from diffsound.data.record import AudioLocation, Record
from diffsound.errors import AudioError, DataError

RATE = 8000


def record(path: Path, **audio: float) -> Record:
    return Record(id="clip", audio=AudioLocation(str(path), **audio), labels=("dog",))


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (0.1 * rng.standard_normal(round(seconds * RATE))).astype(np.float32)


@pytest.mark.parametrize("rate", [8000, 11025, 44100, 48000, 96000, 192000])
@pytest.mark.parametrize("channels", [1, 2, 8])
def test_any_rate_and_channel_count_is_read(
    tmp_path: Path,
    settings: PrepareSettings,
    write_sound: Callable[..., Path],
    rate: int,
    channels: int,
) -> None:
    path = write_sound(tmp_path / "a.wav", seconds=0.25, rate=rate, channels=channels)
    (clip,) = prepare_clip(record(path), settings)
    assert clip.samples.dtype == np.int16
    assert abs(len(clip.samples) - 0.25 * RATE) <= 2
    assert clip.record.seconds == pytest.approx(0.25, abs=1e-3)


def bad_file(kind: str, path: Path, good: Path) -> None:
    """Write the bad file of a kind."""
    silence = np.zeros(RATE, np.float32)
    if kind == "empty":
        path.touch()
    elif kind == "misnamed":
        path.write_text("this is a text file called .wav")
    elif kind == "truncated":
        path.write_bytes(good.read_bytes()[:-1001])
    elif kind == "no samples":
        soundfile.write(path, silence[:0], RATE)
    elif kind == "not a number":
        soundfile.write(path, np.where(np.arange(RATE) == 5, np.nan, silence), RATE, "FLOAT")
    elif kind == "silent":
        soundfile.write(path, silence, RATE)
    elif kind == "all but silent":
        soundfile.write(path, silence + 1e-4, RATE, "FLOAT")
    elif kind == "too short":
        soundfile.write(path, noise(0.02), RATE)
    elif kind == "corrupt":
        soundfile.write(path.with_suffix(".flac"), noise(0.5), RATE)
        content = bytearray(path.with_suffix(".flac").read_bytes())
        content[200:400] = bytes(200)
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("empty", "empty"),
        ("misnamed", "cannot read"),
        ("truncated", "cut short"),
        ("no samples", "no samples"),
        ("not a number", "NaN"),
        ("silent", "^silent$"),
        ("all but silent", "^silent$"),
        ("too short", r"^too short: 0\.020 s$"),
        ("corrupt", "cannot"),
        ("missing", "No such file"),
    ],
)
def test_bad_files_are_refused_with_the_reason(
    tmp_path: Path,
    settings: PrepareSettings,
    write_sound: Callable[..., Path],
    kind: str,
    reason: str,
) -> None:
    bad_file(kind, tmp_path / "bad.wav", write_sound(tmp_path / "good.wav"))
    with pytest.raises((AudioError, DataError), match=reason) as caught:
        prepare_clip(record(tmp_path / "bad.wav"), settings)
    assert "\n" not in str(caught.value)


def test_segments_are_cut_unless_the_file_is_the_segment(
    tmp_path: Path, settings: PrepareSettings
) -> None:
    wave = noise(4.0)
    soundfile.write(tmp_path / "video.flac", wave, RATE)
    (clip,) = prepare_clip(record(tmp_path / "video.flac", start=2.0, end=3.0), settings)
    np.testing.assert_allclose(clip.samples / 32768, wave[2 * RATE : 3 * RATE], atol=1e-4)
    soundfile.write(tmp_path / "cut.flac", wave[: RATE + 100], RATE)
    (clip,) = prepare_clip(record(tmp_path / "cut.flac", start=2.0, end=3.0), settings)
    assert len(clip.samples) == RATE + 100
    with pytest.raises(DataError, match=r"starts at 9.0 s, the file ends at 4.0 s"):
        prepare_clip(record(tmp_path / "video.flac", start=9.0, end=10.0), settings)


def test_long_clips_are_cropped_or_split(tmp_path: Path, settings: PrepareSettings) -> None:
    wave = np.concatenate([noise(2.0, 1), np.zeros(2 * RATE, np.float32), noise(1.5, 2)])
    soundfile.write(tmp_path / "long.flac", wave, RATE)
    (clip,) = prepare_clip(record(tmp_path / "long.flac"), settings)
    assert len(clip.samples) == 2 * RATE
    assert clip.preparation["cropped_from"] == 5.5
    split = settings.model_copy(update={"long": "split"})
    first, last = prepare_clip(record(tmp_path / "long.flac"), split)
    assert (first.record.id, last.record.id) == ("clip-000", "clip-002")  # the middle is silent
    assert last.record.seconds == 1.5
    np.testing.assert_allclose(last.samples / 32768, wave[4 * RATE :], atol=1e-4)


def test_short_clips_are_padded_or_looped(tmp_path: Path, settings: PrepareSettings) -> None:
    wave = noise(0.5)
    soundfile.write(tmp_path / "a.flac", wave, RATE)
    (padded,) = prepare_clip(
        record(tmp_path / "a.flac"), settings.model_copy(update={"fit": "pad"})
    )
    assert len(padded.samples) == 2 * RATE
    assert not padded.samples[RATE // 2 :].any()
    (looped,) = prepare_clip(
        record(tmp_path / "a.flac"), settings.model_copy(update={"fit": "loop"})
    )
    assert len(looped.samples) == 2 * RATE
    assert looped.preparation["looped_from"] == 0.5
    quarters = looped.samples.reshape(8, -1).astype(float)
    assert (quarters.std(axis=1) > 0.5 * quarters.std()).all()


def test_clips_are_trimmed_and_brought_to_the_loudness(
    tmp_path: Path, settings: PrepareSettings
) -> None:
    wave = np.concatenate([np.zeros(RATE), 0.02 * noise(1.0), np.zeros(RATE // 2)])
    soundfile.write(tmp_path / "quiet.flac", wave, RATE, "PCM_24")
    changed = settings.model_copy(update={"loudness": -30.0, "trim_db": 40.0})
    (clip,) = prepare_clip(record(tmp_path / "quiet.flac"), changed)
    assert integrated_loudness(clip.samples / 32768, RATE) == pytest.approx(-30, abs=0.3)
    assert clip.preparation["trimmed_start"] == pytest.approx(1.0, abs=0.03)
    assert clip.preparation["trimmed_end"] == pytest.approx(0.5, abs=0.03)
    assert clip.preparation["gain_db"] > 0


def test_loud_files_are_turned_down_not_clipped(tmp_path: Path, settings: PrepareSettings) -> None:
    wave = 20 * noise(0.5)
    soundfile.write(tmp_path / "hot.wav", wave, RATE, "FLOAT")
    (clip,) = prepare_clip(record(tmp_path / "hot.wav"), settings)
    scaled = clip.samples / 32768
    np.testing.assert_allclose(scaled, wave / np.abs(wave).max(), atol=1e-4)


def test_paraphrases_come_after_the_clips_own_words(
    tmp_path: Path, settings: PrepareSettings, write_sound: Callable[..., Path]
) -> None:
    path = write_sound(tmp_path / "a.wav")
    described = replace(record(path), captions=("my old dog barks",))
    (clip,) = prepare_clip(described, settings)
    assert clip.record.captions[0] == "my old dog barks"
    assert len(clip.record.captions) > 3
    assert clip.preparation["own_captions"] == ["my old dog barks"]
    (plain,) = prepare_clip(described, settings.model_copy(update={"paraphrases": False}))
    assert plain.record.captions == ("my old dog barks",)


@given(
    st.integers(0, 3000), st.integers(1, 3000), st.integers(0, 3000), st.sampled_from([20.0, 60.0])
)
def test_trimming_keeps_everything_loud(before: int, loud: int, after: int, db: float) -> None:
    wave = np.concatenate([np.zeros(before), np.full(loud, 0.5), np.zeros(after)])
    kept, begin = trim_silence(wave.astype(np.float32), RATE, db)
    assert begin <= before
    assert kept.sum() == pytest.approx(0.5 * loud)
    assert len(kept) <= loud + 4 * (RATE // 100)


@example(4, 5)  # a seam of one sample
@given(st.integers(1, 500), st.integers(1, 3000))
def test_looping_a_constant_leaves_it_constant(length: int, samples: int) -> None:
    looped = loop_to(np.ones(length, np.float32), samples, RATE)
    assert len(looped) == samples
    np.testing.assert_allclose(looped, 1.0, atol=1e-5)


def test_flac_is_lossless() -> None:
    samples = to_int16(np.linspace(-1.2, 1.2, 5000))
    assert (samples.min(), samples.max()) == (-32768, 32767)
    decoded, rate = soundfile.read(io.BytesIO(encode_flac(samples, RATE)), dtype="int16")
    assert rate == RATE
    assert (decoded == samples).all()


def test_a_stored_mel_equals_the_one_computed_from_the_clip(
    tmp_path: Path, settings: PrepareSettings, write_sound: Callable[..., Path]
) -> None:
    path = write_sound(tmp_path / "a.wav")
    (clip,) = prepare_clip(record(path), settings)
    members, fingerprint = clip.files(settings.model_copy(update={"store_mel": True}))
    assert list(members) == ["flac", "json", "mel.npy"]
    mel = np.load(io.BytesIO(members["mel.npy"]))
    assert mel.dtype == np.float16
    assert mel.shape == (16, 1 + len(clip.samples) // 128)
    assert fingerprint.shape == (256,)
