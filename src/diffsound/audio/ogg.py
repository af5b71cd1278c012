"""The stream number of an Ogg file.

libsndfile draws it at random, so that the same sound never gives the same file twice. One stream
to a file needs no number of its own.
"""

from __future__ import annotations

import struct
import zlib

_HEAD = 27  # bytes of a page before its table of segments
_SERIAL, _CHECKSUM, _SEGMENTS = 14, 22, 26
# Ogg's checksum is zlib's with the bits of every byte, and of the result, the other way round.
_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_ONES = 0xFFFFFFFF


def with_serial(ogg: bytes, serial: int = 0) -> bytes:
    """The same Ogg file with another stream number on every page."""
    pages, start = [], 0
    while start < len(ogg):
        segments = ogg[start + _SEGMENTS]
        body = start + _HEAD + segments
        end = body + sum(ogg[start + _HEAD : body])
        page = bytearray(ogg[start:end])
        struct.pack_into("<I", page, _SERIAL, serial)
        struct.pack_into("<I", page, _CHECKSUM, 0)
        struct.pack_into("<I", page, _CHECKSUM, _checksum(page))
        pages.append(page)
        start = end
    return b"".join(pages)


def _checksum(page: bytes | bytearray) -> int:
    mirrored = zlib.crc32(page.translate(_MIRRORED), _ONES) ^ _ONES
    return int(f"{mirrored:032b}"[::-1], 2)
