"""Licence statements in many spellings, normalised to a short list of names."""

from __future__ import annotations

import re
from collections.abc import Iterable

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

# Order matters: the restricted licences mention the words of the freer ones.
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

    Restrictions (NC, ND, SA) are kept; what is not understood is `unknown`, never something freer.
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
    """The licences of a filter such as "cc0,cc-by"; a name that is none of ours is refused."""
    names = text.split(",") if isinstance(text, str) else list(text)
    wanted = {name.strip().lower() for name in names if name.strip()}
    for name in sorted(wanted - set(KNOWN_LICENCES)):
        raise InputError(f"unknown licence '{name}'; known are: {', '.join(KNOWN_LICENCES)}")
    if not wanted:
        raise InputError(f"no licence named; known are: {', '.join(KNOWN_LICENCES)}")
    return frozenset(wanted)
