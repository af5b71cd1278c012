"""What libsndfile does not do for WAV, OGG and MP3 files.

It reads half a file as if it were whole, silently drops a comment of more than 2 kB from a WAV,
garbles umlauts in an MP3's tags, and draws the stream number of an Ogg file at random, so
that the same sound never gives the same file twice.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import BinaryIO, NamedTuple

# A program that writes a WAV to a pipe cannot know its length; it leaves a number near 2 or 4 GB.
_UNKNOWN_LENGTH = 0x7FFF0000

_LARGEST_OGG_PAGE = 65307
_OGG_PAGE_HEADER = 27
_OGG_LAST_PAGE = 4

# Encoders differ in which tags they count into an MP3's length.
_MP3_TOLERANCE = 0.01

_HEAD = 27  # bytes of a page before its table of segments
_SERIAL, _CHECKSUM, _SEGMENTS = 14, 22, 26
# Ogg's checksum is zlib's with the bits of every byte, and of the result, the other way round.
_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_ONES = 0xFFFFFFFF


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
