"""The chunks of a WAV file, and its comment.

libsndfile drops a comment of more than 2 kB from a WAV without a word, so it is written here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple


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


def with_comment(wav: bytes, comment: str) -> bytes:
    """A WAV with a comment (LIST INFO ICMT) appended."""
    text = comment.encode() + b"\0"
    entry = b"ICMT" + struct.pack("<I", len(text)) + text + b"\0" * (len(text) % 2)
    body = b"INFO" + entry
    padded = wav + b"\0" * (len(wav) % 2)
    result = padded + b"LIST" + struct.pack("<I", len(body)) + body
    return result[:4] + struct.pack("<I", len(result) - 8) + result[8:]


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
