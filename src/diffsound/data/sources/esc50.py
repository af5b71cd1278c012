"""ESC-50: meta/esc50.csv, audio/, and the LICENSE file with each clip's title, author, licence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from diffsound.data.licences import normalise_licence
from diffsound.data.record import Record, one_line, safe_id
from diffsound.data.sources.base import (
    AudioFinder,
    SourceOptions,
    SourceReport,
    read_csv,
    read_text,
)
from diffsound.errors import DataError

REQUIRED = ("filename", "fold", "target", "category")
SPLITS = {"1": "train", "2": "train", "3": "train", "4": "valid", "5": "test"}
MAJOR = ("animals", "nature", "human", "interior", "urban")  # of targets 0–9, 10–19, …
WHOLE_SET_LICENCE = "CC-BY-NC-3.0"

_LICENCE_LINE = re.compile(
    r"^- \[(?P<clip>[^\]]+?)\.\w+\]:\s+clip derived from (?P<title>.+?)\s*"
    r"\((?P<url>https?://[^\s()]+)\) by (?P<author>.+) \[(?P<licence>[^\[\]]+)\]$"
)


class Esc50:
    """Folds 1–3 are "train", 4 "valid", 5 "test"; clips of one Freesound recording are a group."""

    name = "esc50"
    human_captions = False

    def __init__(self, root: Path, options: SourceOptions) -> None:
        self.root = root
        self.options = options

    def records(self, report: SourceReport) -> Iterator[Record]:
        table = next(
            (p for p in (self.root / "meta/esc50.csv", self.root / "esc50.csv") if p.is_file()),
            None,
        )
        if table is None:
            raise DataError(f"{self.root} has neither meta/esc50.csv nor esc50.csv")
        credits = read_credits(self.root / "LICENSE", report)
        finder = AudioFinder(self.options.audio or self.root, report)
        for row in read_csv(table, REQUIRED, report):
            stem = Path(row["filename"]).stem
            # "1-100032-A-0": the last part is the class, which LICENSE leaves out.
            clip = stem.rpartition("-")[0]
            found = finder.find((stem, clip))
            if found is None:
                report.skip(safe_id(stem), "missing: no audio file of this name")
                continue
            credit = credits.get(clip, {})
            stated = credit.get("licence", WHOLE_SET_LICENCE)
            if not credit:
                report.note(f"{stem} is not in LICENSE; taken as {WHOLE_SET_LICENCE}")
            label = row["category"].replace("_", " ")
            target = int(row["target"]) if row["target"].isdigit() else -1
            tags = (MAJOR[target // 10], label) if 0 <= target < 50 else (label,)
            yield Record(
                id=safe_id(stem),
                audio=found,
                labels=(label,),
                tags=tags,
                title=credit.get("title", ""),
                split=SPLITS.get(row["fold"], "train"),
                licence=normalise_licence(stated),
                licence_stated=stated,
                author=credit.get("author", ""),
                url=credit.get("url", ""),
                source=self.name,
                group=f"esc50/{clip.split('-')[1] if clip.count('-') > 1 else clip}",
            )


def read_credits(path: Path, report: SourceReport) -> dict[str, dict[str, str]]:
    """Clip ("1-100032-A") -> title, url, author and licence, from ESC-50's LICENSE file."""
    if not path.is_file():
        report.note(f"there is no {path.name}; every clip is taken as {WHOLE_SET_LICENCE}")
        return {}
    credits = {}
    for line in read_text(path, report).splitlines():
        match = _LICENCE_LINE.match(line.strip())
        if match:
            fields = {name: one_line(text) for name, text in match.groupdict().items()}
            credits[fields.pop("clip")] = fields
        elif line.startswith("- ["):
            report.note(f"{path.name}: this line is not understood: {line.strip()[:80]}")
    return credits
