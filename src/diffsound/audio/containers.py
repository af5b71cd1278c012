"""What libsndfile does not tell about WAV, OGG and MP3 files: it reads half a file as if it were
whole, and drops a comment of more than 2 kB from a WAV."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

# A program that writes a WAV to a pipe cannot know its length; it leaves a number near 2 or 4 GB.
_UNKNOWN_LENGTH = 0x7FFF0000

_LARGEST_OGG_PAGE = 65307
_OGG_PAGE_HEADER = 27
_OGG_LAST_PAGE = 4

# Encoders differ in which tags they count into an MP3's length.
_MP3_TOLERANCE = 0.01


def is_cut_short(stream: BinaryIO) -> bool:
    """Whether the headers of a WAV, OGG or MP3 promise more than the stream holds.

    FLAC needs no such check, because its decoder loses sync; other formats are not checked.
    """
    length = stream.seek(0, 2)
    stream.seek(0)
    magic = stream.read(4)
    if magic == b"RIFF":
        return _wav_cut_short(stream, length)
    if magic == b"OggS":
        return _ogg_cut_short(stream, length)
    return _mp3_cut_short(stream, length)


def _wav_cut_short(stream: BinaryIO, length: int) -> bool:
    return any(
        chunk.name == b"data" and length < chunk.start + chunk.size < _UNKNOWN_LENGTH
        for chunk in chunks(stream)
    )


def _ogg_cut_short(stream: BinaryIO, length: int) -> bool:
    """The last page must be complete and say that it is the last."""
    stream.seek(max(0, length - _LARGEST_OGG_PAGE))
    tail = stream.read()
    start = tail.rfind(b"OggS")
    header = tail[start : start + _OGG_PAGE_HEADER]
    if start < 0 or len(header) < _OGG_PAGE_HEADER:
        return True
    segments = tail[start + _OGG_PAGE_HEADER :][: header[26]]
    end = start + _OGG_PAGE_HEADER + len(segments) + sum(segments)
    return not header[5] & _OGG_LAST_PAGE or len(segments) < header[26] or end > len(tail)


def _mp3_cut_short(stream: BinaryIO, length: int) -> bool:
    """The first frame of most MP3s is a table ("Xing" or "Info") that has the length in bytes."""
    stream.seek(0)
    head = stream.read(10)
    start = 0
    if head[:3] == b"ID3" and len(head) == 10:
        start = 10 + sum(
            byte << shift for byte, shift in zip(head[6:], (21, 14, 7, 0), strict=True)
        )
    stream.seek(start)
    frame = stream.read(256)
    at = max(frame.find(b"Xing"), frame.find(b"Info"))
    if frame[:1] != b"\xff" or at < 0 or len(frame) < at + 16:
        return False
    flags, frames_or_size, size = struct.unpack_from(">3I", frame, at + 4)
    has_frames, has_size = flags & 1, flags & 2
    promised = 0 if not has_size else size if has_frames else frames_or_size
    return length - start < promised * (1 - _MP3_TOLERANCE)


class Chunk(NamedTuple):
    """A chunk's four-letter name, where its content starts, and its promised length in bytes."""

    name: bytes
    start: int
    size: int


def chunks(stream: BinaryIO) -> Iterator[Chunk]:
    """The chunks of a RIFF WAVE stream; none when it is something else."""
    stream.seek(0)
    head = stream.read(12)
    if head[:4] != b"RIFF" or head[8:] != b"WAVE":
        return
    start = 12
    while len(header := stream.read(8)) == 8:
        name, size = struct.unpack("<4sI", header)
        start += 8
        yield Chunk(name, start, size)
        start += size + size % 2
        stream.seek(start)


def read_comment(stream: BinaryIO) -> str | None:
    """The comment of a WAV, if it has one."""
    for chunk in chunks(stream):
        if chunk.name == b"LIST":
            stream.seek(chunk.start)
            body = stream.read(chunk.size)
            if (comment := _entry(body, b"ICMT")) is not None:
                return comment
            stream.seek(chunk.start)
    return None


def _entry(body: bytes, wanted: bytes) -> str | None:
    if body[:4] != b"INFO":
        return None
    position = 4
    while position + 8 <= len(body):
        name, size = struct.unpack_from("<4sI", body, position)
        position += 8
        if name == wanted:
            return body[position : position + size].rstrip(b"\0").decode(errors="replace")
        position += size + size % 2
    return None
