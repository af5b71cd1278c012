"""Clotho-style tables: `file_name, caption_1 … caption_5`, and optional metadata with licences.

DIR/clotho_captions_development.csv   DIR/clotho_metadata_development.csv
DIR/development/*.wav                 (the same for validation and evaluation)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from diffsound.data.licences import normalise_licence
from diffsound.data.record import AudioLocation, Record, one_line, safe_id
from diffsound.data.sources.base import (
    AudioFinder,
    SourceOptions,
    SourceReport,
    check_columns,
    inside,
    read_csv,
    split_list,
)
from diffsound.errors import DataError

SPLITS = {"development": "train", "validation": "valid", "evaluation": "test"}


class Clotho:
    """Records with several captions each; Clotho's own split names become ours."""

    name = "clotho"
    human_captions = True

    def __init__(self, root: Path, options: SourceOptions) -> None:
        self.root = root
        self.options = options

    def records(self, report: SourceReport) -> Iterator[Record]:
        tables = sorted(self.root.glob("*captions*.csv"))
        if not tables:
            raise DataError(f"{self.root} has no caption table (*captions*.csv)")
        audio = self.options.audio or self.root
        finder = AudioFinder(audio, report)
        for table in tables:
            split = next((name for name in SPLITS if name in table.name), "train")
            credits = self._metadata(table, report)
            for row in read_csv(table, ("file_name",), report):
                columns = sorted(name for name in row if name.startswith("caption"))
                check_columns(table, columns or list(row), columns[:1] or ["caption_1"])
                name = row["file_name"]
                found = self._find(audio, split, name, finder)
                if found is None:
                    report.skip(safe_id(Path(name).stem), "missing: no audio file of this name")
                    continue
                captions = (one_line(row[column]) for column in columns)
                credit = credits.get(name, {})
                stated = credit.get("license", "") or self.options.licence or ""
                yield Record(
                    id=safe_id(Path(name).stem),
                    audio=found,
                    captions=tuple(dict.fromkeys(text for text in captions if text)),
                    tags=split_list(credit.get("keywords", ""), ";"),
                    title=Path(name).stem,
                    split=SPLITS.get(split, split),
                    licence=normalise_licence(stated),
                    licence_stated=stated,
                    author=credit.get("manufacturer", "") or self.options.author,
                    url=credit.get("sound_link", ""),
                    source=self.name,
                    group=credit.get("sound_id", "") or Path(name).stem,
                )

    def _metadata(self, table: Path, report: SourceReport) -> dict[str, dict[str, str]]:
        path = table.with_name(table.name.replace("captions", "metadata"))
        if not path.is_file():
            report.note(f"there is no {path.name}: licences and authors are not known")
            return {}
        return {row["file_name"]: row for row in read_csv(path, ("file_name",), report)}

    @staticmethod
    def _find(audio: Path, split: str, name: str, finder: AudioFinder) -> AudioLocation | None:
        """In the split's own folder first: two splits may use one name."""
        for folder in (audio / split, audio):
            path = inside(folder, name)
            if path is not None and path.is_file():
                return AudioLocation(str(path))
        return finder.find((Path(name).stem,))
