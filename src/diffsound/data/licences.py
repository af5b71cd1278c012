"""Licences, normalised to a short list of names, and the credits of a prepared folder."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from diffsound.data.record import Record
from diffsound.errors import InputError

KNOWN_LICENCES = (
    "cc0",
    "public-domain",
    "cc-by",
    "cc-by-sa",
    "cc-by-nd",
    "cc-by-nc",
    "cc-by-nc-sa",
    "cc-by-nc-nd",
    "cc-sampling+",
    "bsd",
    "mit",
    "apache",
    "gpl",
    "lgpl",
    "unknown",
)

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
    "cc0",
    "public-domain",
    "mit",
    "bsd",
    "apache",
    "cc-by",
    "cc-sampling+",
    "cc-by-sa",
    "lgpl",
    "gpl",
    "cc-by-nc",
    "cc-by-nc-sa",
    "unknown",
)


def combined_licence(licences: Sequence[str]) -> str:
    """The licence of a mix of clips; `unknown` if one of them is not understood."""
    known = set(licences)
    if any("nc" in name.split("-") for name in known) and any(
        "sa" in name.split("-") for name in known
    ):
        known.add("cc-by-nc-sa")
    if not known <= set(DEMANDS):
        return "unknown"
    return max(known, key=DEMANDS.index, default="unknown")


def credits(records: Sequence[Record]) -> str:
    """Markdown with a section per source and a line per author: licence, clips, addresses."""
    by_source: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_source[record.source or "unknown source"].append(record)
    stated = Counter(record.licence_stated or record.licence for record in records)
    lines = [
        "# Attribution",
        "",
        f"{len(records)} clips. Licences as their sources state them:",
        "",
    ]
    lines += [f"- {licence}: {count}" for licence, count in stated.most_common()]
    for source, group in sorted(by_source.items()):
        lines += ["", f"## {source} ({len(group)} clips)", ""]
        lines += [_author_line(author, clips) for author, clips in _by_author(group)]
    return "\n".join(lines) + "\n"


def _by_author(records: Sequence[Record]) -> list[tuple[str, list[Record]]]:
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[record.author or "unknown author"].append(record)
    return sorted(groups.items(), key=lambda item: item[0].casefold())


def _author_line(author: str, records: Sequence[Record]) -> str:
    licences = sorted({record.licence_stated or record.licence for record in records})
    addresses = sorted({record.url for record in records if record.url})
    number = f"{len(records)} clip" + "s" * (len(records) > 1)
    where = f": {' '.join(addresses)}" if addresses else ""
    return f"- {author} [{', '.join(licences)}], {number}{where}"
