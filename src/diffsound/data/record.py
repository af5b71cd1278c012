"""The record type that every data source yields and every later stage reads."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diffsound.errors import DataError

# A name in a ustar header holds 100 bytes; this leaves room for the longest suffix.
MAX_ID = 88

_LISTS = frozenset(["captions", "labels", "tags"])


@dataclass(frozen=True, slots=True)
class AudioLocation:
    """Where a clip's audio is: a file or a member of an uncompressed tar, or a part of one.

    path:   the audio file, or the tar that holds it.
    member: the member's name when `path` is a tar.
    span:   the member's (offset, bytes) in the tar, so that it is read without a scan.
    start, end: the wanted part in seconds. A file no longer than the part counts as already cut.
    """

    path: str
    member: str | None = None
    start: float | None = None
    end: float | None = None
    span: tuple[int, int] | None = None

    def __str__(self) -> str:
        return f"{self.path}::{self.member}" if self.member else self.path


@dataclass(frozen=True, slots=True)
class Record:
    """One clip: its audio, texts, author and licence.

    licence: normalised (`licences.normalise_licence`); `licence_stated`: the source's words.
    group:   shared by clips of one recording; a source never divides a group between splits.
    """

    id: str
    audio: AudioLocation
    captions: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    title: str = ""
    split: str = "train"
    licence: str = "unknown"
    licence_stated: str = ""
    author: str = ""
    url: str = ""
    source: str = ""
    group: str = ""
    seconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Every field but the audio location, which differs from folder to folder."""
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "audio"}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in fields.items()
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], audio: AudioLocation) -> Record:
        """The record from a prepared clip's JSON; unknown keys are ignored, wrong types refused."""
        known = {name: fields[name] for name in cls.__slots__ if name in fields and name != "audio"}
        for name, value in known.items():
            if name in _LISTS:
                good = isinstance(value, list) and all(isinstance(text, str) for text in value)
                known[name] = tuple(value) if good else value
            elif name == "seconds":
                good = value is None or isinstance(value, int | float)
            else:
                good = isinstance(value, str)
            if not good:
                raise DataError(f"{audio}: the field '{name}' of a clip is damaged: {value!r:.60}")
        return cls(audio=audio, **known)


def safe_id(text: str) -> str:
    """A clip id for file names and tar members: at most 88 letters, digits, `_` and `-`.

    Other characters become `_`; a text that is too long ends in a hash of the whole text.
    """
    name = text
    if not re.fullmatch(r"[A-Za-z0-9_-]+", text):
        name = re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_") or "clip"
    if len(name) <= MAX_ID:
        return name
    return f"{name[: MAX_ID - 9]}-{short_hash(text)}"


def short_hash(text: str) -> str:
    """Eight hex digits of the text's SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def one_line(text: str) -> str:
    """The text on one line: runs of white space, including line breaks, become one space."""
    return " ".join(text.split())
