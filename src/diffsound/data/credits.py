"""Whom to thank: every author of a prepared folder, with licences and addresses, as Markdown."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from diffsound.data.record import Record


def credits(records: Sequence[Record]) -> str:
    """One section per source, one line per author: licence, number of clips, where they are."""
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
