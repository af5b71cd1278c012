"""Metadata tables as people have them: CSV in several encodings, JSON lines, ragged rows."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from diffsound.data.sources.base import SourceReport
from diffsound.errors import DataError


def read_csv(
    path: str | Path,
    required: Sequence[str],
    report: SourceReport,
    *,
    columns: Sequence[str] | None = None,
    comment: str | None = None,
) -> Iterator[dict[str, str]]:
    """The rows of a CSV as {column: text}, stripped.

    columns: the names when the file has no header row. comment: lines beginning so are left out.
    A file without a required column is refused; a row with too few or too many fields is noted
    and left out.
    """
    path = Path(path)
    lines = read_text(path, report).splitlines(keepends=True)
    if comment is not None:
        lines = ["\n" if line.startswith(comment) else line for line in lines]
    # strict: an unclosed quote must not swallow the rest of the file as one field.
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
                    "row left out"
                )
                continue
            yield dict(zip(header, (field.strip() for field in row), strict=True))
    except csv.Error as error:
        raise DataError(f"{path} line {reader.line_num}: not valid CSV ({error})") from error
    if header is None:
        check_columns(path, [], required)


def read_jsonl(
    path: str | Path, required: Sequence[str], report: SourceReport
) -> Iterator[dict[str, str | list[str]]]:
    """The objects of a JSON-lines file; a line that is none, or lacks a key, is noted."""
    path = Path(path)
    for number, line in enumerate(read_text(path, report).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            report.note(f"{path.name} line {number}: not a JSON object; left out")
            continue
        missing = [name for name in required if name not in fields]
        if missing:
            report.note(f"{path.name} line {number}: no '{missing[0]}'; left out")
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
        raise DataError(f"{path} is not a text file (it holds zero bytes)")
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
