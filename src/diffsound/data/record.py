"""Records: a clip's audio, texts, author and licence. Licences by short names, and the credits."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diffsound.errors import DataError, InputError

# A name in a ustar header holds 100 bytes; this leaves room for the longest suffix.
MAX_ID = 88

_LISTS = frozenset(["captions", "labels", "tags"])


@dataclass(frozen=True, slots=True)
class AudioLocation:
    """Where a clip's audio is: a file or a member of an uncompressed tar, or a part of one.

    start, end: the wanted part in seconds. A file no longer than the part counts as already cut.
    """

    path: str  # the audio file, or the tar that holds it
    member: str | None = None  # its name in the tar
    start: float | None = None
    end: float | None = None
    span: tuple[int, int] | None = None  # (offset, bytes) in the tar: read without a scan

    def __str__(self) -> str:
        return f"{self.path}::{self.member}" if self.member else self.path


@dataclass(frozen=True, slots=True)
class Record:
    """One clip: its audio, texts, author and licence.

    licence: normalised (`normalise_licence`); `licence_stated`: the source's words.
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
        return {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}

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


KNOWN_LICENCES = (
    "cc0", "public-domain", "cc-by", "cc-by-sa", "cc-by-nd", "cc-by-nc", "cc-by-nc-sa",
    "cc-by-nc-nd", "cc-sampling+", "bsd", "mit", "apache", "gpl", "lgpl", "unknown",
)  # fmt: skip

# Order matters: restricted licences contain the words of freer ones.
_WORDS = {
    "sampling": "cc-sampling+",
    "publicdomain/zero": "cc0",
    "cc0": "cc0",
    "cc-zero": "cc0",
    "creative-commons-0": "cc0",
    "creative-commons-zero": "cc0",
    "public-domain": "public-domain",
    "publicdomain": "public-domain",
    "bsd": "bsd",
    "lgpl": "lgpl",
    "gpl": "gpl",
    "apache": "apache",
}

# "CC …", a creativecommons.org address, or nothing but the licence's own words ("by-nc 3.0").
_CREATIVE_COMMONS = re.compile(
    r"(^|[^a-z])cc([^a-z]|$)|creative-?commons"
    r"|^(by|attribution|non-?commercial|nc|no-?deriv\w*|nd|share-?alike|sa|licen[cs]e|[-\d.])+$"
)
_BY = re.compile(r"(^|[^a-z])by([^a-z]|$)|attribution")


def normalise_licence(text: str | None) -> str:
    """The licence's short name, whatever its version: "CC BY 3.0" and its URL are both `cc-by`.

    Restrictions (NC, ND, SA) are kept. A statement that is not understood is `unknown`.
    """
    stated = re.sub(r"[\s_]+", "-", (text or "").strip().lower())
    for word, name in _WORDS.items():
        if word in stated:
            return name
    if re.search(r"(^|[^a-z])mit([^a-z]|$)", stated):
        return "mit"
    if not (_CREATIVE_COMMONS.search(stated) and _BY.search(stated)):
        return "unknown"
    parts = ["cc-by"]
    if re.search(r"(^|[^a-z])nc([^a-z]|$)|non-?commercial", stated):
        parts.append("nc")
    if re.search(r"(^|[^a-z])nd([^a-z]|$)|no-?deriv", stated):
        parts.append("nd")
    elif re.search(r"(^|[^a-z])sa([^a-z]|$)|share-?alike", stated):
        parts.append("sa")
    return "-".join(parts)


def parse_licences(text: str | Iterable[str]) -> frozenset[str]:
    """The licences of a filter such as "cc0,cc-by"; unknown names are refused."""
    names = text.split(",") if isinstance(text, str) else list(text)
    wanted = {name.strip().lower() for name in names if name.strip()}
    for name in sorted(wanted - set(KNOWN_LICENCES)):
        raise InputError(f"unknown licence '{name}'; known are: {', '.join(KNOWN_LICENCES)}")
    if not wanted:
        raise InputError(f"no licence named; known are: {', '.join(KNOWN_LICENCES)}")
    return frozenset(wanted)


# From the freest to the most demanding; a mix has the most demanding licence of its clips.
DEMANDS = (
    "cc0", "public-domain", "mit", "bsd", "apache", "cc-by", "cc-sampling+", "cc-by-sa", "lgpl",
    "gpl", "cc-by-nc", "cc-by-nc-sa", "unknown",
)  # fmt: skip


def combined_licence(licences: Sequence[str]) -> str:
    """The licence of a mix of clips; `unknown` if one of them is not understood."""
    known = set(licences)
    if {"nc", "sa"} <= {part for name in known for part in name.split("-")}:
        known.add("cc-by-nc-sa")
    if not known <= set(DEMANDS):
        return "unknown"
    return max(known, key=DEMANDS.index, default="unknown")


def credits(records: Sequence[Record]) -> str:
    """Markdown with a section per source and a line per author: licence, clips, addresses."""
    stated = Counter(record.licence_stated or record.licence for record in records)
    lines = [f"# Attribution\n\n{len(records)} clips. Licences as their sources state them:\n"]
    lines += [f"- {licence}: {count}" for licence, count in stated.most_common()]
    for source, group in sorted(_grouped(records, "source").items()):
        lines += [f"\n## {source} ({len(group)} clips)\n"]
        authors = sorted(_grouped(group, "author").items(), key=lambda item: item[0].casefold())
        lines += [_author_line(author, clips) for author, clips in authors]
    return "\n".join(lines) + "\n"


def _grouped(records: Sequence[Record], field: str) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[getattr(record, field) or f"unknown {field}"].append(record)
    return groups


def _author_line(author: str, records: Sequence[Record]) -> str:
    licences = sorted({record.licence_stated or record.licence for record in records})
    addresses = sorted({record.url for record in records if record.url})
    number = f"{len(records)} clip" + "s" * (len(records) > 1)
    where = f": {' '.join(addresses)}" if addresses else ""
    return f"- {author} [{', '.join(licences)}], {number}{where}"
