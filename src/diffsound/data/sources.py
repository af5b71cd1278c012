"""Data sources by name, and the two for sounds of one's own: any folder, and a corpus.

A folder's clip takes its text from, in this order:

1. a table: `--captions FILE`, or captions/metadata .csv/.jsonl in the folder; columns `file` and
   `caption` (or caption_1 …), optionally label, tags, title, split, licence, author, url, group
2. a text file of the same name (`bark.wav`, `bark.txt`): one caption per line
3. its name: "Dog_bark_04.wav" is "dog bark"; its folder is its label

A folder whose `metadata.csv` has an id and a file for every clip is a `Corpus`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from diffsound.data.captions import clean_title
from diffsound.data.published import AUDIOCAPS_COLUMNS, AudioCaps, AudioSet, Clotho, Esc50
from diffsound.data.record import AudioLocation, Record, one_line, safe_id, short_hash
from diffsound.data.tables import (
    Source,
    SourceOptions,
    SourceReport,
    check_columns,
    inside,
    read_csv,
    read_jsonl,
    read_text,
    split_list,
    walk_audio,
)
from diffsound.errors import DataError, InputError

TABLES = ("captions.csv", "captions.jsonl", "metadata.csv", "metadata.jsonl")
FILE_COLUMNS = ("file", "file_name", "filename", "path", "audio")

Fields = dict[str, str | list[str]]


class Folder(Source):
    """Every audio file below a folder (tars included), in sorted order."""

    name = "folder"

    def records(self, report: SourceReport) -> Iterator[Record]:
        locations = list(walk_audio(self.audio, report))
        names = [self._name(location) for location in locations]
        slugs = [safe_id(str(name.with_suffix(""))) for name in names]
        repeated = {slug for slug, count in Counter(slugs).items() if count > 1}
        table = self._table(report)
        for location, name, slug in zip(locations, names, slugs, strict=True):
            clip_id = safe_id(f"{slug}-{short_hash(str(name))}") if slug in repeated else slug
            yield self._record(clip_id, location, name, _take(table, name), report)
        for file in table:
            report.skip(safe_id(PurePosixPath(file).stem), f"missing: the table names {file}")

    def _record(
        self,
        clip_id: str,
        location: AudioLocation,
        name: PurePosixPath,
        rows: list[Fields],
        report: SourceReport,
    ) -> Record:
        captions = _values(rows, "caption", "text", "description")
        if not captions and location.member is None:
            beside = Path(location.path).with_suffix(".txt")
            if beside.is_file():
                captions = [one_line(line) for line in read_text(beside, report).splitlines()]
        title = _first(rows, "title") or name.stem
        if not any(captions):
            captions = [clean_title(title)]
        labels = [
            label for text in _values(rows, "label", "category") for label in split_list(text)
        ]
        if not labels and name.parent.name:
            labels = [one_line(name.parent.name.replace("_", " "))]
        group = _first(rows, "group") or re.sub(r"[\W_]*\d+$", "", str(name.with_suffix("")))
        share = int(short_hash(group), 16) / 2**32
        split = "valid" if share < self.options.valid_share else "train"
        return Record(
            id=clip_id,
            audio=location,
            captions=tuple(dict.fromkeys(text for text in captions if text)),
            labels=tuple(dict.fromkeys(labels)),
            tags=tuple(tag for text in _values(rows, "tags") for tag in split_list(text)),
            title=title,
            split=_first(rows, "split") or split,
            url=_first(rows, "url"),
            source=self.root.name,
            group=group,
            **self.credit(_first(rows, "licence", "license"), _first(rows, "author")),
        )

    def _name(self, location: AudioLocation) -> PurePosixPath:
        """The clip's path relative to the folder (inside a tar: to the tar)."""
        if location.member is not None:
            return PurePosixPath(location.member)
        return PurePosixPath(Path(location.path).relative_to(self.audio).as_posix())

    def _table(self, report: SourceReport) -> dict[str, list[Fields]]:
        """File -> its rows (several rows give several captions)."""
        path = self.options.captions
        if path is None:
            path = next((self.root / n for n in TABLES if (self.root / n).is_file()), None)
        if path is None:
            return {}
        rows: Iterable[Fields]
        if path.suffix.lower() in (".jsonl", ".ndjson"):
            rows = read_jsonl(path, report)
        else:
            rows = ({**row} for row in read_csv(path, (), report))
        table: dict[str, list[Fields]] = {}
        for row in rows:
            column = next((name for name in FILE_COLUMNS if name in row), FILE_COLUMNS[0])
            check_columns(path, list(row), (column,))
            file = PurePosixPath(str(row[column]).replace("\\", "/"))
            table.setdefault(str(file), []).append(row)
        return table


def _take(table: dict[str, list[Fields]], name: PurePosixPath) -> list[Fields]:
    """Remove and return the rows of a clip: named by path, by file name, or without suffix."""
    for key in (str(name), name.name, str(name.with_suffix("")), name.stem):
        if key in table:
            return table.pop(key)
    return []


def _values(rows: list[Fields], *prefixes: str) -> list[str]:
    """The distinct values of the columns that begin with one of the prefixes."""
    values: dict[str, None] = {}
    for row in rows:
        for column, value in row.items():
            if column.lower().startswith(prefixes):
                for text in value if isinstance(value, list) else [value]:
                    values.setdefault(one_line(text))
    return [text for text in values if text]


def _first(rows: list[Fields], *prefixes: str) -> str:
    return next(iter(_values(rows, *prefixes)), "")


CORPUS_COLUMNS = ("id", "file")


class Corpus(Source):
    """Columns: id, file (required); source, split, label, title, caption, tags, licence, author,
    url, seconds, group (optional). Several labels, captions or tags are separated by `;`.
    """

    name = "corpus"

    def records(self, report: SourceReport) -> Iterator[Record]:
        for row in read_csv(self.root / "metadata.csv", CORPUS_COLUMNS, report):
            if not row["id"]:
                report.note("metadata.csv: a row without an id; skipped")
                continue
            clip_id = safe_id(row["id"])
            path = inside(self.audio, row["file"])
            if path is None:
                report.skip(clip_id, f"its file is outside the corpus: {row['file']}")
                continue
            if not path.is_file():
                report.skip(clip_id, "missing: no such audio file")
                continue
            yield Record(
                id=clip_id,
                audio=AudioLocation(str(path)),
                captions=tuple(one_line(text) for text in split_list(row.get("caption", ""), ";")),
                labels=split_list(row.get("label", ""), ";"),
                tags=split_list(row.get("tags", "")),
                title=one_line(row.get("title", "")),
                split=row.get("split") or "train",
                url=row.get("url", ""),
                source=row.get("source") or self.root.name,
                group=row.get("group") or clip_id,
                seconds=_seconds(row.get("seconds", "")),
                **self.credit(row.get("licence"), row.get("author")),
            )


def _seconds(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


SOURCES: dict[str, type[Source]] = {
    source.name: source for source in (AudioSet, AudioCaps, Esc50, Clotho, Folder, Corpus)
}


def open_source(spec: str, options: SourceOptions | None = None) -> Source:
    """A source from "name:path", or from a path whose kind is detected from its files."""
    name, colon, rest = spec.partition(":")
    known = bool(colon) and name in SOURCES
    if colon and not known and not Path(spec).exists():
        raise InputError(f"unknown source '{name}'; known are: {', '.join(sorted(SOURCES))}")
    root = Path(rest if known else spec)
    if not root.exists():
        raise DataError(f"{root} does not exist")
    kind = name if known else guess_kind(root)
    return SOURCES[kind](root, options or SourceOptions())


def guess_kind(root: Path) -> str:
    """The kind of source a folder looks like; any folder of sounds is a `folder`."""
    if (root / "meta" / "esc50.csv").is_file() or (root / "esc50.csv").is_file():
        return "esc50"
    if any(root.glob("*_segments.csv")):
        return "audioset"
    if any(root.glob("clotho_captions*.csv")):
        return "clotho"
    if _header(root / "train.csv") >= set(AUDIOCAPS_COLUMNS):
        return "audiocaps"
    if _header(root / "metadata.csv") >= set(CORPUS_COLUMNS):
        return "corpus"
    return "folder"


def _header(path: Path) -> set[str]:
    """The column names of a CSV, empty when there is none."""
    if not path.is_file():
        return set()
    with path.open("rb") as stream:
        line = stream.readline(4096).decode("utf-8-sig", "replace")
    return {name.strip().strip('"') for name in line.split(",")}
