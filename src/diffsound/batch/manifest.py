"""The manifest of a folder of sounds: a JSON line for each, with its seed and checksum.

Lines are appended as sounds are finished, so that a killed job resumes where it stopped; at the end
the file is put in the order of the rows. It holds nothing that changes from run to run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from diffsound.errors import DataError
from diffsound.files import atomic_write, parse_json, read_text, sha256

MANIFEST = "manifest.jsonl"
FAILURES = "failures.jsonl"

Entry = dict[str, Any]


def read_manifest(folder: str | Path) -> dict[str, Entry]:
    """The entries by file name, without a line that a kill left unfinished."""
    path = Path(folder) / MANIFEST
    try:
        lines = read_text(path, limit=2**30).rstrip("\n").split("\n")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    entries: dict[str, Entry] = {}
    if lines == [""]:
        return entries
    for number, line in enumerate(lines, 1):
        try:
            entry = parse_json(line)
            if not isinstance(entry["file"], str):
                raise TypeError("a file's name is a text")
            entries[entry["file"]] = entry
        except (ValueError, TypeError, KeyError) as error:
            if number == len(lines):  # cut off by a kill; that sound is made again
                break
            raise DataError(
                f"{path}, line {number} is damaged; delete the file to make all sounds again"
            ) from error
    return entries


def is_made(folder: Path, entry: Entry | None, key: str) -> bool:
    """Whether the sound with this key exists, byte for byte."""
    if entry is None or entry.get("key") != key:
        return False
    path = folder / entry["file"]
    return path.is_file() and sha256(path) == entry.get("sha256")


def append(folder: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    """Append finished sounds; they are on disk when this returns."""
    with (folder / MANIFEST).open("ab") as stream:
        stream.writelines(map(_line, entries))
        stream.flush()
        os.fsync(stream.fileno())


def write(folder: Path, entries: Iterable[Mapping[str, Any]], name: str = MANIFEST) -> None:
    """Replace the file by these lines; without lines it is removed."""
    text = b"".join(map(_line, entries))
    if not text:
        (folder / name).unlink(missing_ok=True)
        return
    with atomic_write(folder / name) as temporary:
        temporary.write_bytes(text)


def _line(entry: Mapping[str, Any]) -> bytes:
    # A lone surrogate is not valid UTF-8, but Python's escape for it is valid JSON.
    return json.dumps(entry, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
