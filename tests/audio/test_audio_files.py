"""Audio files in and out, and everything that can be wrong with them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsound.audio import containers
from diffsound.audio.io import (
    AUDIO_FORMATS,
    check_target,
    encode_audio,
    fit_length,
    read_audio,
    read_metadata,
    resample,
    to_mono,
    with_serial,
    with_tags,
    write_audio,
)
from diffsound.errors import AudioError, InputError

RATE = 22050


def tone(seconds: float = 1.0, rate: int = RATE, hertz: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(
        np.float32
    )


def noise(seconds: float = 1.0, level: float = 0.1) -> np.ndarray:
    samples = np.random.default_rng(0).standard_normal(round(seconds * RATE))
    return (level * samples).astype(np.float32)


def one_line(error: pytest.ExceptionInfo[Exception]) -> str:
    message = str(error.value)
    assert message
    assert "\n" not in message
    return message


# Reading


@pytest.mark.parametrize("format", AUDIO_FORMATS)
def test_a_written_file_reads_back(tmp_path: Path, format: str) -> None:
    path = tmp_path / f"tone.{format.upper()}"
    write_audio(path, tone(), RATE)
    wave = read_audio(path)
    assert wave.dtype == np.float32
    assert wave.shape == (RATE,)
    tolerance = 1e-4 if format in ("wav", "flac") else 0.02
    inner = slice(2000, -2000)  # lossy codecs ring at hard edges
    assert np.abs(wave - tone())[inner].max() < tolerance
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(("rate", "channels"), [(8000, 1), (44100, 2), (48000, 6), (96000, 1)])
def test_any_rate_and_channel_count_becomes_mono(rate: int, channels: int) -> None:
    buffer = io.BytesIO()
    stereo = np.stack([tone(rate=rate)] * channels, axis=1)
    soundfile.write(buffer, stereo, rate, format="WAV", subtype="FLOAT")
    wave = read_audio(buffer, RATE)
    assert wave.shape == (RATE,)
    inner = slice(500, -500)
    assert np.abs(wave - tone())[inner].max() < 1e-3


def test_a_pipe_is_read(tmp_path: Path) -> None:
    reader, writer = os.pipe()

    def fill() -> None:
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(encode_audio(tone(), RATE))

    thread = threading.Thread(target=fill)
    thread.start()
    with os.fdopen(reader, "rb") as stream:
        wave = read_audio(stream)
    thread.join()
    assert wave.shape == (RATE,)


def test_a_given_stream_stays_open() -> None:
    stream = io.BytesIO(encode_audio(tone(), RATE))
    read_audio(stream)
    np.testing.assert_array_equal(read_audio(stream), read_audio(stream))


def test_a_wav_of_unknown_length_from_a_pipe_is_read() -> None:
    data = bytearray(encode_audio(tone(), RATE))
    position = data.index(b"data") + 4
    data[position : position + 4] = b"\xff\xff\xff\xff"
    assert read_audio(io.BytesIO(bytes(data))).shape == (RATE,)


@pytest.mark.parametrize("format", AUDIO_FORMATS)
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.95])
def test_a_truncated_file_is_refused(format: str, share: float) -> None:
    data = encode_audio(noise(3), RATE, format)
    with pytest.raises(AudioError) as error:
        read_audio(io.BytesIO(data[: int(len(data) * share)]))
    assert "cannot read the audio: " in one_line(error)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "the file is empty"),
        (b"this is no audio at all " * 40, "Format not recognised"),
        (b"RIFF", "cannot read"),
        (b"ID3\x04\x00\x00\x7f\x7f\x7f\x7f", "cannot read"),
        (b"OggS", "cut short"),
        (bytes(range(256)) * 50, "cannot read"),
    ],
    ids=["empty", "text", "RIFF only", "ID3 only", "OGG only", "bytes"],
)
def test_a_file_that_is_not_audio_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "bad.wav"
    path.write_bytes(content)
    with pytest.raises(AudioError) as error:
        read_audio(path)
    assert expected in one_line(error)
    assert str(path) in one_line(error)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_files_give_a_wave_or_an_audio_error(data: st.DataObject) -> None:
    format = data.draw(st.sampled_from(AUDIO_FORMATS))
    content = bytearray(encode_audio(tone(0.05), RATE, format))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        wave = read_audio(io.BytesIO(bytes(content)), max_seconds=10)
    except AudioError:
        return
    assert np.isfinite(wave).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinite_samples_are_refused(bad: float) -> None:
    samples = tone()
    samples[100] = bad
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, RATE, format="WAV", subtype="FLOAT")
    with pytest.raises(AudioError, match="NaN or infinite"):
        read_audio(buffer)


def test_a_file_without_samples_is_refused() -> None:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros(0), RATE, format="WAV")
    with pytest.raises(AudioError, match="no samples"):
        read_audio(buffer)


def test_an_absurd_length_is_refused_before_it_is_decoded() -> None:
    buffer = io.BytesIO(encode_audio(tone(2), RATE))
    with pytest.raises(AudioError, match=r"lasts 2 s, longer than 1\.5 s"):
        read_audio(buffer, max_seconds=1.5)


def test_an_absurd_rate_is_refused() -> None:
    buffer = io.BytesIO()
    soundfile.write(buffer, tone(0.1), 7, format="WAV")
    with pytest.raises(AudioError, match="sample rate is 7 Hz"):
        read_audio(buffer)


@pytest.mark.parametrize("name", ["missing.wav", ".", "nul\0.wav", "raw.raw"])
def test_an_unreadable_path_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "raw.raw").write_bytes(b"12345678")
    with pytest.raises(AudioError) as error:
        read_audio(tmp_path / name)
    assert "cannot read" in one_line(error)


# Writing


@pytest.mark.parametrize("format", AUDIO_FORMATS)
@pytest.mark.parametrize("level", [0.3, 3.0])
def test_nothing_clips(format: str, level: float) -> None:
    wave = np.sign(noise()) * np.float32(level)
    decoded, _ = soundfile.read(io.BytesIO(encode_audio(wave, RATE, format)), dtype="float32")
    assert np.abs(decoded).max() <= 1.0


@pytest.mark.parametrize("format", ["wav", "flac"])
def test_a_wave_within_range_is_not_changed(format: str) -> None:
    decoded, _ = soundfile.read(io.BytesIO(encode_audio(tone(), RATE, format)), dtype="float32")
    assert np.abs(decoded - tone()).max() < 1 / 32768


def test_a_loud_wave_is_scaled_as_a_whole() -> None:
    decoded, _ = soundfile.read(io.BytesIO(encode_audio(4 * tone(), RATE)), dtype="float32")
    gain = decoded @ tone() / (tone() @ tone())
    assert gain == pytest.approx(0.99 / 0.5, rel=1e-3)
    assert np.abs(decoded - gain * tone()).max() < 1e-4


@pytest.mark.parametrize(
    ("format", "bits", "subtype"),
    [("wav", 24, "PCM_24"), ("wav", 32, "FLOAT"), ("flac", 24, "PCM_24")],
)
def test_24_and_32_bits_keep_more_precision(format: str, bits: int, subtype: str) -> None:
    data = encode_audio(tone(), RATE, format, bits=bits)
    assert soundfile.info(io.BytesIO(data)).subtype == subtype
    assert np.abs(read_audio(io.BytesIO(data)) - tone()).max() < 1e-6


@pytest.mark.parametrize(("format", "bits"), [("flac", 32), ("mp3", 24), ("wav", 8)])
def test_bit_depths_a_format_cannot_store_are_refused(format: str, bits: int) -> None:
    with pytest.raises(AudioError, match=f"cannot hold {bits} bits, only 16"):
        encode_audio(tone(), RATE, format, bits=bits)


def test_minutes_of_vorbis_are_written() -> None:
    # Given at once, this much crashes libsndfile's encoder.
    data = encode_audio(noise(120), 8000, "ogg")
    assert soundfile.info(io.BytesIO(data)).frames == 120 * RATE


@pytest.mark.parametrize("format", AUDIO_FORMATS)
@pytest.mark.parametrize(
    "metadata",
    [
        {"prompt": "a dog barks", "seed": "7"},
        {"prompt": 'quotes " and \\ and\nnewlines, ümläuts, 犬, 🐕'},
        {"prompt": "x" * 9001},
    ],
    ids=["plain", "odd", "long"],
)
def test_metadata_is_read_back(tmp_path: Path, format: str, metadata: dict[str, str]) -> None:
    path = tmp_path / f"a.{format}"
    write_audio(path, tone(), RATE, metadata=metadata)
    assert read_metadata(path) == metadata
    assert read_audio(path).shape == (RATE,)


@pytest.mark.parametrize("format", AUDIO_FORMATS)
def test_files_of_other_programs_have_no_metadata(format: str) -> None:
    assert read_metadata(io.BytesIO(encode_audio(tone(), RATE, format))) == {}
    buffer = io.BytesIO()
    with soundfile.SoundFile(buffer, "w", RATE, 1, format=format.upper()) as file:
        file.comment = "recorded at dawn"
        file.write(tone())
    assert read_metadata(buffer) == {}


def test_other_programs_can_read_the_comment_of_a_wav() -> None:
    data = encode_audio(tone(), RATE, metadata={"prompt": "rain"})
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        assert file.comment == '{"prompt": "rain"}'


@given(samples=st.integers(1, 9), comment=st.text(st.characters(codec="utf-8"), max_size=30))
@settings(max_examples=40, deadline=None)
def test_riff_comments_keep_the_chunks_aligned(samples: int, comment: str) -> None:
    data = with_tags(encode_audio(tone()[:samples], RATE), {"title": "x", "comment": comment})
    assert int.from_bytes(data[4:8], "little") == len(data) - 8
    assert containers.read_comment(io.BytesIO(data)) == comment.rstrip("\0")
    assert [chunk.name for chunk in containers.chunks(io.BytesIO(data))] == [
        b"fmt ",
        b"data",
        b"LIST",
    ]


def test_a_torch_tensor_can_be_written() -> None:
    assert encode_audio(torch.from_numpy(tone()), RATE) == encode_audio(tone(), RATE)


@pytest.mark.parametrize(
    "wave", [np.zeros(0), np.zeros((2, 100)), np.array([0.0, np.nan]), np.array([np.inf])]
)
def test_a_wave_that_cannot_be_written_is_refused(tmp_path: Path, wave: np.ndarray) -> None:
    with pytest.raises(AudioError) as error:
        write_audio(tmp_path / "a.wav", wave, RATE)
    one_line(error)
    assert not list(tmp_path.iterdir())


def test_ogg_pages_get_the_checksums_libogg_gives_them() -> None:
    buffer = io.BytesIO()
    soundfile.write(buffer, noise(3.0), 22050, format="OGG")
    file = buffer.getvalue()
    serial = int.from_bytes(file[14:18], "little")
    assert with_serial(with_serial(file), serial) == file


@pytest.mark.parametrize("format", ["wav", "flac", "ogg", "mp3"])
def test_the_same_sound_is_the_same_file(format: str) -> None:
    metadata = {"prompt": "a dog barks" * 300}
    files = {encode_audio(noise(0.2), 22050, format, metadata=metadata) for _ in range(3)}
    assert len(files) == 1
    file = files.pop()
    # A wrong checksum would cost the pages that have one.
    assert len(read_audio(io.BytesIO(file))) >= 4410
    assert read_metadata(io.BytesIO(file)) == metadata


@pytest.mark.parametrize(("rate", "format"), [(0, "wav"), (10**6, "ogg"), (12345, "mp3")])
def test_a_rate_that_cannot_be_written_is_refused(rate: int, format: str) -> None:
    with pytest.raises(AudioError, match=f"{rate} Hz"):
        encode_audio(tone(), rate, format)


@pytest.mark.parametrize("name", ["a.txt", "a", "nowhere/a.wav", "file.wav/a.wav", "folder.wav"])
def test_a_target_that_cannot_be_written_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file.wav").write_bytes(b"kept")
    (tmp_path / "folder.wav").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for call in (check_target, lambda path: write_audio(path, tone(), RATE, overwrite=True)):
        with pytest.raises(AudioError) as error:
            call(tmp_path / name)
        assert f"cannot write {tmp_path / name}" in one_line(error)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_existing_file_is_kept_without_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"precious")
    with pytest.raises(AudioError, match="already exists"):
        write_audio(path, tone(), RATE)
    assert path.read_bytes() == b"precious"
    write_audio(path, tone(), RATE, overwrite=True)
    assert read_audio(path).shape == (RATE,)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    # A limit on the size of files fails in the middle of a write, as a full disk does.
    code = (
        "import resource, sys, numpy\n"
        "from diffsound.audio.io import write_audio\n"
        "from diffsound.errors import AudioError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: write_audio(sys.argv[1], numpy.zeros(22050), 22050)\n"
        "except AudioError as error: print(error)\n"
    )
    path = tmp_path / "a.wav"
    result = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert result.stdout == f"cannot write {path}: File too large\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("loudness", [-100.0, 3.0, float("nan")])
def test_an_absurd_loudness_is_refused(loudness: float) -> None:
    with pytest.raises(InputError, match="LUFS"):
        encode_audio(tone(), RATE, loudness=loudness)


# Waves


@given(length=st.integers(0, 20), samples=st.integers(0, 20))
def test_fit_length(length: int, samples: int) -> None:
    wave = np.arange(1, length + 1, dtype=np.float32)
    fitted = fit_length(wave, samples)
    kept = min(length, samples)
    assert fitted.shape == (samples,)
    assert fitted.dtype == np.float32
    np.testing.assert_array_equal(fitted[:kept], wave[:kept])
    assert not fitted[kept:].any()


def test_to_mono_averages() -> None:
    both = np.stack([tone(), -3 * tone()], axis=1)
    np.testing.assert_allclose(to_mono(both), -tone(), atol=1e-6)
    np.testing.assert_array_equal(to_mono(tone()), tone())


def test_resampling_keeps_only_frequencies_below_both_nyquist_limits() -> None:
    down = resample(tone(rate=48000, hertz=1000), 48000, RATE)
    assert np.abs(down - tone(hertz=1000))[500:-500].max() < 1e-3
    gone = resample(tone(rate=48000, hertz=15000), 48000, RATE)
    assert np.abs(gone)[500:-500].max() < 1e-3


@pytest.mark.parametrize("name", ["pipe.wav", "folder.wav", "device.wav"])
def test_pipes_and_devices_are_refused_without_blocking(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe.wav")
    (tmp_path / "folder.wav").mkdir()
    (tmp_path / "device.wav").symlink_to("/dev/zero")
    for read in (read_audio, read_metadata):
        with pytest.raises(AudioError, match="cannot read"):
            read(tmp_path / name)


@pytest.mark.parametrize("format", ["wav", "flac", "ogg", "mp3"])
def test_an_empty_tag_is_left_out(format: str) -> None:
    tags = {"title": "", "artist": "diffsound"}
    data = encode_audio(np.zeros(2205), 22050, format, tags=tags, metadata={"seed": 1})
    assert read_metadata(io.BytesIO(data)) == {"seed": 1}
    assert b"diffsound" in data
