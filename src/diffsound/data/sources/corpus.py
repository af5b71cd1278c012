"""A corpus folder: `metadata.csv` with one row per clip, and the files it names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from diffsound.data.find import inside
from diffsound.data.licences import normalise_licence
from diffsound.data.record import AudioLocation, Record, one_line, safe_id
from diffsound.data.sources.base import SourceOptions, SourceReport
from diffsound.data.tables import read_csv, split_list

REQUIRED = ("id", "file")


class Corpus:
    """Columns: id, file (needed); source, split, label, title, caption, tags, licence, author, url,
    seconds, group (each may be missing). Several labels, captions or tags are parted by `;`.
    """

    name = "corpus"
    human_captions = False

    def __init__(self, root: Path, options: SourceOptions) -> None:
        self.root = root
        self.options = options

    def records(self, report: SourceReport) -> Iterator[Record]:
        audio = self.options.audio or self.root
        for row in read_csv(self.root / "metadata.csv", REQUIRED, report):
            if not row["id"]:
                report.note("metadata.csv: a row without an id; left out")
                continue
            clip_id = safe_id(row["id"])
            path = inside(audio, row["file"])
            if path is None:
                report.skip(clip_id, f"its file lies outside of the corpus: {row['file']}")
                continue
            if not path.is_file():
                report.skip(clip_id, "missing: no such audio file")
                continue
            stated = row.get("licence", "") or self.options.licence or ""
            yield Record(
                id=clip_id,
                audio=AudioLocation(str(path)),
                captions=tuple(one_line(text) for text in split_list(row.get("caption", ""), ";")),
                labels=split_list(row.get("label", ""), ";"),
                tags=split_list(row.get("tags", "")),
                title=one_line(row.get("title", "")),
                split=row.get("split") or "train",
                licence=normalise_licence(stated),
                licence_stated=stated,
                author=row.get("author", "") or self.options.author,
                url=row.get("url", ""),
                source=row.get("source") or self.root.name,
                group=row.get("group") or clip_id,
                seconds=_seconds(row.get("seconds", "")),
            )


def _seconds(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
