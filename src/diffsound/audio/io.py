"""Audio files in and out: WAV, FLAC, OGG and MP3, any rate and channel count.

Everything inside the package is one channel of float32. Whatever is wrong with a file becomes a
one-line AudioError.
"""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import soundfile
import soxr
from numpy.typing import ArrayLike, NDArray

from diffsound.audio.mixing import LOUDNESS_CEILING, keep_peak, to_loudness
from diffsound.errors import AudioError
from diffsound.files import atomic_write, open_regular, parse_json

Wave = NDArray[np.float32]
Bits = Literal[16, 24, 32]

AUDIO_FORMATS = ("wav", "flac", "ogg", "mp3")

# libsndfile's name of each sample format; 32 bits are floating point.
_SUBTYPES = {
    ("wav", 16): "PCM_16",
    ("wav", 24): "PCM_24",
    ("wav", 32): "FLOAT",
    ("flac", 16): "PCM_16",
    ("flac", 24): "PCM_24",
    ("ogg", 16): "VORBIS",
    ("mp3", 16): "MPEG_LAYER_III",
}
_LOSSY = ("ogg", "mp3")

# Our names of libsndfile's containers; the three kinds of WAV are one.
_CONTAINERS = {"WAV": "wav", "WAVEX": "wav", "RF64": "wav"} | {
    name.upper(): name for name in AUDIO_FORMATS[1:]
}

# Just below full scale, so that rounding to integers cannot clip.
_CEILING = 0.99

# Decoding and encoding run in blocks: memory stays bounded for any number of channels, and
# libsndfile's Vorbis encoder overflows its stack when it is given minutes in one piece.
_BLOCK = 65536

# Beyond these a header is a mistake, and libsndfile's Vorbis encoder crashes above 200 kHz.
_READABLE_RATES = range(1000, 768_001)
_WRITABLE_RATES = range(1000, 192_001)
_MP3_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)


def read_audio(
    source: str | Path | BinaryIO,
    sample_rate: int = 22050,
    *,
    name: str | None = None,
    max_seconds: float = 3600.0,
    max_bytes: int = 2**32,
    formats: tuple[str, ...] | None = None,
) -> Wave:
    """Read a file or binary stream as mono float32 [samples] at `sample_rate`.

    Channels are averaged. A file that is unreadable, cut short, empty, longer than
    `max_seconds`, more than `max_bytes` when decoded, or has NaN or infinite samples raises an
    AudioError, which calls it `name`. formats: the containers to accept, of AUDIO_FORMATS;
    None accepts whatever libsndfile reads (recordings for training may be AIFF, AU, CAF or W64).
    """
    found, opened = _open(source)
    name = name or found
    with opened as stream:
        _check_whole(name, stream)
        try:
            with soundfile.SoundFile(stream) as file:
                container = _CONTAINERS.get(file.format, file.format)
                if formats is not None and container not in formats:
                    raise ValueError(f"{container} is not supported")
                mono, rate = _decode(name, file, max_seconds, max_bytes), file.samplerate
        except (soundfile.SoundFileError, TypeError, ValueError) as error:
            raise AudioError(
                f"cannot read {name}: {_reason(error)}; give a WAV, FLAC, OGG or MP3 file"
            ) from error
    if not np.isfinite(mono).all():
        raise AudioError(f"cannot use {name}: it has NaN or infinite samples")
    wave = resample(mono, rate, sample_rate)
    if not len(wave):
        raise AudioError(f"cannot use {name}: it has no samples")
    return wave


def to_mono(wave: NDArray[np.float32]) -> Wave:
    """Average the channels of [samples, channels]; [samples] passes through."""
    return wave if wave.ndim == 1 else wave.mean(axis=1, dtype=np.float32)


def resample(wave: Wave, source_rate: int, target_rate: int) -> Wave:
    """Resample [samples] with soxr's high-quality filter."""
    if source_rate == target_rate or not len(wave):
        return wave
    return soxr.resample(wave, source_rate, target_rate, quality="HQ").astype(np.float32)


def fit_length(wave: Wave, samples: int) -> Wave:
    """Cut [n] at the end, or pad it there with silence, to exactly [samples]."""
    return np.pad(wave[:samples], (0, max(0, samples - len(wave))))


def check_target(path: str | Path, *, overwrite: bool = False) -> Path:
    """Refuse a target that could not be written; worth calling before a long computation."""
    path = Path(path)
    if path.suffix.lower().removeprefix(".") not in AUDIO_FORMATS:
        known = ", ".join(f".{name}" for name in AUDIO_FORMATS)
        raise AudioError(f"cannot write {path}: its name must end in one of {known}")
    if not path.parent.is_dir():
        raise AudioError(f"cannot write {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise AudioError(f"cannot write {path}: it is a folder")
    if path.exists() and not overwrite:
        raise AudioError(f"cannot write {path}: it already exists; overwrite it explicitly")
    return path


def write_audio(
    path: str | Path,
    wave: ArrayLike,
    sample_rate: int,
    *,
    overwrite: bool = False,
    **encoding: Any,
) -> None:
    """Write a wave [samples] in the format its name ends in, whole or not at all.

    encoding: the other keywords of `encode_audio`.
    """
    path = check_target(path, overwrite=overwrite)
    write_bytes(path, encode_audio(wave, sample_rate, path.suffix.lower()[1:], **encoding))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; a full disk or missing permission is an AudioError."""
    try:
        with atomic_write(path) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise AudioError(f"cannot write {path}: {error.strerror or error}") from error


def encode_audio(
    wave: ArrayLike,
    sample_rate: int,
    format: str = "wav",
    *,
    bits: Bits = 16,
    loudness: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
) -> bytes:
    """A wave [samples] or [samples, 2] as the bytes of an audio file.

    Never clips: a wave above full scale is scaled down as a whole, and nothing else is changed.
    `loudness` is the integrated loudness to reach in LUFS, as far as a peak of -1 dBFS allows.
    `metadata` is stored as JSON in the file's comment; `read_metadata` returns it. Players show the
    `tags`: "title", "artist", "date". `bits` of 24 (WAV, FLAC) and 32 (floating point, WAV)
    are for further editing.
    """
    samples = np.asarray(wave, dtype=np.float32)
    if not len(samples) or samples.shape[1:] not in ((), (2,)):
        raise AudioError(f"a wave to write is [samples > 0] or stereo, not {list(samples.shape)}")
    if not np.isfinite(samples).all():
        raise AudioError("the wave to write has NaN or infinite samples")
    subtype = check_encoding(format, bits, sample_rate)
    if loudness is not None:
        samples = to_loudness(samples, sample_rate, loudness)
    # libsndfile refuses an empty tag; a clip without a prompt has no title.
    written = {name: text for name, text in (tags or {}).items() if text}
    if metadata:
        written["comment"] = json.dumps(dict(metadata))
    if format in _LOSSY:
        return _encode_lossy(samples, sample_rate, format, subtype, written)
    return _encode(keep_peak(samples, _CEILING), sample_rate, format, subtype, written)


def check_encoding(format: str, bits: Bits, sample_rate: int) -> str:
    """libsndfile's name of the sample format; what a format cannot hold is refused."""
    subtype = _SUBTYPES.get((format, bits))
    if subtype is None:
        taken = [str(depth) for name, depth in _SUBTYPES if name == format]
        if not taken:
            raise AudioError(f"{format} is not a format that can be written")
        raise AudioError(f"a .{format} file cannot hold {bits} bits, only {' or '.join(taken)}")
    if sample_rate not in _WRITABLE_RATES:
        raise AudioError(f"a sample rate of {sample_rate} Hz cannot be written; use 1000 to 192000")
    if format == "mp3" and sample_rate not in _MP3_RATES:
        rates = ", ".join(map(str, _MP3_RATES))
        raise AudioError(f"MP3 has no sample rate of {sample_rate} Hz; there are: {rates}")
    return subtype


def read_metadata(source: str | Path | BinaryIO) -> dict[str, Any]:
    """The metadata `write_audio` put into a file; empty when there is none."""
    from diffsound.audio.containers import read_comment

    name, opened = _open(source)
    with opened as stream:
        comment = read_comment(stream)
        if comment is None:
            stream.seek(0)
            try:
                with soundfile.SoundFile(stream) as file:
                    comment = file.comment
            except (soundfile.SoundFileError, TypeError, ValueError) as error:
                raise AudioError(f"cannot read {name}: {_reason(error)}") from error
    try:
        values = parse_json(comment)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def describe_audio(path: str | Path) -> str:
    """ "5.00 s, 22050 Hz, mono, WAV (Signed 16 bit PCM)"."""
    name, opened = _open(path)
    with opened as stream:
        _check_whole(name, stream)
        try:
            found = soundfile.info(stream)
        except (soundfile.SoundFileError, TypeError, ValueError) as error:
            raise AudioError(f"cannot read {name}: {_reason(error)}") from error
    channels = {1: "mono", 2: "stereo"}.get(found.channels, f"{found.channels} channels")
    kind = f"{found.format} ({found.subtype_info})"
    return f"{found.duration:.2f} s, {found.samplerate} Hz, {channels}, {kind}"


def audio_seconds(path: str | Path) -> float:
    """How long a file that was just written is."""
    return float(soundfile.info(str(path)).duration)


def _open(source: str | Path | BinaryIO) -> tuple[str, nullcontext[BinaryIO] | BinaryIO]:
    """The source's name for messages, and a seekable stream to use in a `with`.

    A stream that was given is left open; one that cannot seek (a pipe) is read into memory.
    """
    if not isinstance(source, str | Path):
        stream = source if source.seekable() else io.BytesIO(source.read())
        return str(getattr(source, "name", None) or "the audio"), nullcontext(stream)
    try:
        return str(source), open_regular(source)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise AudioError(f"cannot read {source}: {reason}") from error


def _check_whole(name: str, stream: BinaryIO) -> None:
    from diffsound.audio.containers import is_cut_short

    if stream.seek(0, 2) == 0:
        raise AudioError(f"cannot read {name}: the file is empty")
    if is_cut_short(stream):
        raise AudioError(f"cannot read {name}: it is cut short; get the whole file again")
    stream.seek(0)


def _decode(name: str, file: soundfile.SoundFile, max_seconds: float, max_bytes: int) -> Wave:
    """All samples, averaged over channels, at the file's own rate."""
    if file.samplerate not in _READABLE_RATES:
        raise AudioError(f"cannot use {name}: its sample rate is {file.samplerate} Hz")
    promised = file.frames  # soundfile never reads more, whatever the file holds
    if promised > max_seconds * file.samplerate:
        seconds = promised / file.samplerate
        raise AudioError(
            f"cannot use {name}: it lasts {seconds:.0f} s, longer than {max_seconds:g} s"
        )
    if promised * file.channels * 4 > max_bytes:
        raise AudioError(f"cannot use {name}: it decodes to more than {max_bytes >> 20} MiB")
    size = max(1, _BLOCK // file.channels)
    blocks = [
        to_mono(block) for block in file.blocks(blocksize=size, dtype="float32", always_2d=True)
    ]
    mono = np.concatenate(blocks) if blocks else np.zeros(0, np.float32)
    if len(mono) < promised:
        raise AudioError(
            f"cannot read {name}: it is cut short, with {len(mono)} of {promised} samples"
        )
    return mono


def _encode(
    samples: Wave, sample_rate: int, format: str, subtype: str, tags: Mapping[str, str]
) -> bytes:
    buffer = io.BytesIO()
    try:
        with soundfile.SoundFile(
            buffer,
            "w",
            sample_rate,
            channels=samples.shape[1] if samples.ndim > 1 else 1,
            format=format.upper(),
            subtype=subtype,
        ) as file:
            if format not in ("wav", "mp3"):
                for name, value in tags.items():
                    setattr(file, name, value)
            for start in range(0, len(samples), _BLOCK):
                file.write(samples[start : start + _BLOCK])
    except (soundfile.SoundFileError, TypeError, ValueError) as error:
        raise AudioError(f"cannot write .{format} at {sample_rate} Hz: {_reason(error)}") from error
    data = buffer.getvalue()
    if format == "ogg":
        return with_serial(data)
    if format == "mp3" and tags:
        return with_id3(data, tags)
    return with_tags(data, tags) if format == "wav" and tags else data


def _encode_lossy(
    samples: Wave, sample_rate: int, format: str, subtype: str, tags: Mapping[str, str]
) -> bytes:
    """Encode so that the decoded wave does not clip: a lossy codec may overshoot the peak."""
    ceiling = LOUDNESS_CEILING
    while True:
        data = _encode(keep_peak(samples, ceiling), sample_rate, format, subtype, tags)
        decoded, _ = soundfile.read(io.BytesIO(data), dtype="float32")
        peak = float(np.abs(decoded).max(initial=0.0))
        if peak <= 1:
            return data
        ceiling *= _CEILING / peak


def _reason(error: Exception) -> str:
    """libsndfile's message, as part of a sentence."""
    text = getattr(error, "error_string", None) or str(error)
    return " ".join(text.removeprefix("Error : ").rstrip(". ").split()) or "unknown error"


# What libsndfile writes otherwise: it drops a comment of more than 2 kB from a WAV, garbles umlauts
# in an MP3's tags, and draws the stream number of an Ogg file at random, so that the same sound
# never gives the same file twice.

_HEAD = 27  # bytes of a page before its table of segments
_SERIAL, _CHECKSUM, _SEGMENTS = 14, 22, 26
# Ogg's checksum is zlib's with the bits of every byte, and of the result, in reverse order.
_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_ONES = 0xFFFFFFFF

# A WAV's name (RIFF INFO) of each tag.
_INFO = {"title": b"INAM", "artist": b"IART", "date": b"ICRD", "comment": b"ICMT"}


def with_tags(wav: bytes, tags: Mapping[str, str]) -> bytes:
    """A WAV with tags appended: "title", "artist", "date", "comment"."""
    body = b"INFO"
    for name, value in tags.items():
        text = value.encode() + b"\0"
        body += _INFO[name] + struct.pack("<I", len(text)) + text + b"\0" * (len(text) % 2)
    padded = wav + b"\0" * (len(wav) % 2)
    result = padded + b"LIST" + struct.pack("<I", len(body)) + body
    return result[:4] + struct.pack("<I", len(result) - 8) + result[8:]


# An MP3's name (ID3v2.4) of each tag.
_ID3 = {"title": b"TIT2", "artist": b"TPE1", "date": b"TDRC", "comment": b"COMM"}
_UTF8 = b"\x03"


def with_id3(mp3: bytes, tags: Mapping[str, str]) -> bytes:
    """An MP3 with tags in front, in UTF-8, which libsndfile would mark as Latin-1."""
    frames = b""
    for name, value in tags.items():
        # A comment also has a language, and a description, which is empty.
        text = _UTF8 + (b"eng\0" if name == "comment" else b"") + value.encode()
        frames += _ID3[name] + _seven_bits(len(text)) + b"\0\0" + text
    return b"ID3\x04\0\0" + _seven_bits(len(frames)) + frames + mp3


def _seven_bits(size: int) -> bytes:
    """Seven bits a byte, so that a size cannot look like the start of an MPEG frame."""
    return bytes(size >> shift & 0x7F for shift in (21, 14, 7, 0))


def with_serial(ogg: bytes, serial: int = 0) -> bytes:
    """The same Ogg file with a fixed stream number on every page; a file has only one stream."""
    pages, start = [], 0
    while start < len(ogg):
        segments = ogg[start + _SEGMENTS]
        body = start + _HEAD + segments
        end = body + sum(ogg[start + _HEAD : body])
        page = bytearray(ogg[start:end])
        struct.pack_into("<I", page, _SERIAL, serial)
        struct.pack_into("<I", page, _CHECKSUM, 0)
        struct.pack_into("<I", page, _CHECKSUM, _ogg_checksum(page))
        pages.append(page)
        start = end
    return b"".join(pages)


def _ogg_checksum(page: bytes | bytearray) -> int:
    mirrored = zlib.crc32(page.translate(_MIRRORED), _ONES) ^ _ONES
    return int(f"{mirrored:032b}"[::-1], 2)
