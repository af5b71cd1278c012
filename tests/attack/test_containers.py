"""Mutated audio files: read as a sound, or refused in one line."""

from __future__ import annotations

import io
from functools import cache

import numpy as np
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from attack_support import attack, survives
from diffsound.audio.io import AUDIO_FORMATS, encode_audio, read_audio, read_metadata

RATE = 22050
FOREIGN = ("AIFF", "AU", "CAF", "W64", "VOC", "SVX")


@cache
def seed_file(format: str) -> bytes:
    wave = np.sin(np.arange(RATE // 4) / 20).astype(np.float32) / 2
    if format in AUDIO_FORMATS:
        return encode_audio(wave, RATE, format, metadata={"diffsound": "{}", "x": "y" * 300})
    buffer = io.BytesIO()
    soundfile.write(buffer, wave, RATE, format=format, subtype="PCM_16")
    return buffer.getvalue()


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A good file with bytes changed (mostly in its headers), cut out, put in, or cut off."""
    data = bytearray(seed_file(draw(st.sampled_from([*AUDIO_FORMATS, *FOREIGN]))))
    for _ in range(draw(st.integers(1, 6))):
        reach = draw(st.sampled_from([64, 512, len(data)]))
        place = draw(st.integers(0, max(0, min(reach, len(data)) - 1)))
        new = draw(st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from(
            [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f", b"LIST", b"data", b"OggS"]
        )))  # fmt: skip
        match draw(st.sampled_from(["change", "change", "insert", "remove", "end"])):
            case "change":
                data[place : place + len(new)] = new
            case "insert":
                data[place:place] = new
            case "remove":
                del data[place : place + draw(st.integers(1, 64))]
            case "end":
                del data[place:]
    return bytes(data)


def check(data: bytes) -> None:
    def read() -> None:
        wave = read_audio(io.BytesIO(data), RATE, max_seconds=60, max_bytes=2**26)
        assert wave.dtype == np.float32
        assert wave.ndim == 1
        assert len(wave)
        assert np.isfinite(wave).all()

    survives(read)
    survives(lambda: read_metadata(io.BytesIO(data)))


@attack(300)
@given(mutated())
def test_mutated_sounds(data: bytes) -> None:
    check(data)


@attack(150)
@given(st.sampled_from([b"", b"RIFF", b"OggS", b"fLaC", b"ID3", b"\xff\xfb", b"FORM", b"caff"]),
       st.binary(max_size=400))  # fmt: skip
def test_noise_behind_a_magic_number(magic: bytes, rest: bytes) -> None:
    check(magic + rest)
