"""What data sources share: the base class, tables of text, and finding audio files.

A source yields records and reports what it left out.
"""

from __future__ import annotations

import csv
import os
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TypedDict

from diffsound.data.record import AudioLocation, Record, normalise_licence
from diffsound.errors import DataError
from diffsound.files import parse_json


@dataclass
class SourceReport:
    """What a source left out (skipped clips) and what it corrected or found odd (notes)."""

    skipped: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def skip(self, clip_id: str, reason: str) -> None:
        self.skipped.append((clip_id, reason))

    def note(self, text: str) -> None:
        self.notes.append(text)


@dataclass(frozen=True)
class SourceOptions:
    """What a user may add to a source's own files.

    audio:       folder (or tar) with the audio when it is not beside the metadata.
    captions:    caption table of a folder source.
    licence, author: of clips that state none.
    valid_share: share of groups a folder source puts into the split "valid".
    """

    audio: Path | None = None
    captions: Path | None = None
    licence: str | None = None
    author: str = ""
    valid_share: float = 0.0


class Credit(TypedDict):
    """Whose clip it is and what it may be used for, as fields of a record."""

    licence: str
    licence_stated: str
    author: str


class Source(ABC):
    """A data set on disk. `records` gives the same records in the same order every time.

    human_captions: people wrote the captions; paraphrases by rule would only dilute them.
    """

    name: str
    human_captions: bool = False

    def __init__(self, root: Path, options: SourceOptions) -> None:
        self.root = root
        self.options = options
        self.audio = options.audio or root

    @abstractmethod
    def records(self, report: SourceReport) -> Iterator[Record]: ...

    def credit(self, licence: str | None = None, author: str | None = None) -> Credit:
        """A clip's own licence and author, or those the user gave."""
        stated = licence or self.options.licence or ""
        return Credit(
            licence=normalise_licence(stated),
            licence_stated=stated,
            author=author or self.options.author,
        )


def read_csv(
    path: str | Path,
    required: Sequence[str],
    report: SourceReport,
    *,
    columns: Sequence[str] | None = None,
    comment: str | None = None,
) -> Iterator[dict[str, str]]:
    """The rows of a CSV as {column: text}, stripped.

    columns: the column names if the file has no header row. comment: lines that start with it are
    skipped. A file without a required column is refused; a row with too few or too many fields is
    noted and skipped.
    """
    path = Path(path)
    lines = read_text(path, report).splitlines(keepends=True)
    if comment is not None:
        lines = ["\n" if line.startswith(comment) else line for line in lines]
    # strict: an unclosed quote must not turn the rest of the file into one field.
    reader = csv.reader(lines, skipinitialspace=True, strict=True)
    try:
        header = list(columns) if columns is not None else None
        for row in reader:
            if not any(field.strip() for field in row):
                continue
            if header is None:
                header = [name.strip() for name in row]
                check_columns(path, header, required)
                continue
            if len(row) != len(header):
                report.note(
                    f"{path.name} line {reader.line_num}: {len(row)} fields, not {len(header)}; "
                    "row skipped"
                )
                continue
            yield dict(zip(header, (field.strip() for field in row), strict=True))
    except csv.Error as error:
        raise DataError(f"{path} line {reader.line_num}: not valid CSV ({error})") from error
    if header is None:
        check_columns(path, [], required)


def read_jsonl(path: str | Path, report: SourceReport) -> Iterator[dict[str, str | list[str]]]:
    """The objects of a JSON-lines file; bad lines are noted and skipped."""
    path = Path(path)
    for number, line in enumerate(read_text(path, report).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            fields = parse_json(line)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            report.note(f"{path.name} line {number}: not a JSON object; skipped")
            continue
        yield {
            str(name): [str(item) for item in value] if isinstance(value, list) else str(value)
            for name, value in fields.items()
            if value is not None
        }


def read_text(path: str | Path, report: SourceReport) -> str:
    """The file's text: UTF-8, UTF-16 by its mark, else Windows Latin (noted)."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        text = content.decode("cp1252", errors="replace")
        report.note(f"{path.name} is not valid {encoding}; read as Windows Latin (cp1252)")
    if "\0" in text:
        raise DataError(f"{path} is not a text file (it contains zero bytes)")
    return text


def check_columns(path: str | Path, found: Sequence[str], required: Sequence[str]) -> None:
    missing = [name for name in required if name not in found]
    if missing:
        raise DataError(
            f"{path} has no column '{missing[0]}'; it has: {', '.join(found) or 'no header'}"
        )


def split_list(text: str, separators: str = ";,") -> tuple[str, ...]:
    """The parts of "a; b, c" in order, without blanks and repeats."""
    for separator in separators[1:]:
        text = text.replace(separator, separators[0])
    parts = (part.strip() for part in text.split(separators[0]))
    return tuple(dict.fromkeys(part for part in parts if part))


AUDIO_SUFFIXES = frozenset([
    ".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".au", ".caf",
    ".w64", ".rf64",
])  # fmt: skip
# Audio that libsndfile cannot read: reported rather than overlooked.
FOREIGN_SUFFIXES = frozenset([".m4a", ".aac", ".wma", ".mp4", ".webm", ".mkv", ".amr", ".ape"])


class AudioFinder:
    """Locations by file stem ("YTID_30" of "a/YTID_30.wav"), from a folder tree and its tars."""

    def __init__(self, root: Path, report: SourceReport) -> None:
        self._by_stem: dict[str, AudioLocation] = {}
        for location in walk_audio(root, report):
            stem = PurePosixPath(location.member or location.path).stem
            first = self._by_stem.setdefault(stem, location)
            if first is not location:
                report.note(f"'{stem}' exists twice; using {first}, not {location}")

    def find(self, stems: Iterable[str]) -> AudioLocation | None:
        """The first of the stems that exists."""
        return next((self._by_stem[stem] for stem in stems if stem in self._by_stem), None)


def walk_audio(root: Path, report: SourceReport) -> Iterator[AudioLocation]:
    """Every audio file under `root` in sorted order, including members of tars."""
    if root.is_file():
        yield from tar_audio(root, report)
        return
    for path in walk_files(root, report):
        suffix = path.suffix.lower()
        if suffix in AUDIO_SUFFIXES:
            yield AudioLocation(str(path))
        elif suffix == ".tar":
            yield from tar_audio(path, report)
        elif suffix in FOREIGN_SUFFIXES:
            report.skip(str(path.relative_to(root)), f"{suffix} files cannot be read; convert them")


def walk_files(root: Path, report: SourceReport) -> Iterator[Path]:
    """Every file under `root` in sorted order; links are followed, folders entered once."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder")
    seen: set[tuple[int, int]] = set()

    def enter(folder: Path) -> Iterator[Path]:
        try:
            status = folder.stat()
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            report.note(f"cannot open the folder {folder}: {error.strerror or error}")
            return
        if (status.st_dev, status.st_ino) in seen:
            report.note(f"{folder} was visited already (circular link?); skipped")
            return
        seen.add((status.st_dev, status.st_ino))
        for entry in entries:
            try:
                if entry.is_dir():
                    yield from enter(Path(entry.path))
                elif entry.is_file():
                    yield Path(entry.path)
                elif entry.is_symlink():
                    report.note(f"{entry.path} is a broken link; skipped")
            except OSError as error:
                report.note(f"cannot access {entry.path}: {error.strerror or error}")

    yield from enter(root)


def tar_audio(path: Path, report: SourceReport) -> Iterator[AudioLocation]:
    """The audio members of an uncompressed tar, which are read in place, not unpacked."""
    try:
        with tarfile.open(path, mode="r:") as tar:
            for member in tar:
                name = PurePosixPath(member.name)
                if name.suffix.lower() not in AUDIO_SUFFIXES:
                    continue
                if name.is_absolute() or ".." in name.parts:
                    report.skip(f"{path.name}::{member.name}", "its name points outside the tar")
                elif not member.isreg():
                    report.skip(f"{path.name}::{member.name}", "not a regular file in the tar")
                else:
                    yield AudioLocation(
                        str(path), member=member.name, span=(member.offset_data, member.size)
                    )
    except (OSError, tarfile.TarError) as error:
        # What precedes the damage is kept: better to lose one clip than the whole tar.
        report.note(f"{path} is damaged or compressed ({error}); read up to that point")


def inside(root: Path, name: str) -> Path | None:
    """`root / name`, or None if the name points outside the root."""
    parts = PurePosixPath(name.replace("\\", "/"))
    if not name or parts.is_absolute() or ".." in parts.parts or "\0" in name:
        return None
    return root / parts
