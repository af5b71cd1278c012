"""Data sources by name. Each is a small adapter from a data set's own files to `Record`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from diffsound.data.sources.base import Source, SourceOptions, SourceReport
from diffsound.data.sources.corpus import Corpus
from diffsound.errors import DataError, InputError

SOURCES: dict[str, Callable[[Path, SourceOptions], Source]] = {
    "corpus": Corpus,
}

__all__ = ["SOURCES", "Source", "SourceOptions", "SourceReport", "open_source"]


def open_source(spec: str, options: SourceOptions | None = None) -> Source:
    """A source from "name:path", or from a path alone, whose kind is then seen from its files."""
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
    if (root / "metadata.csv").is_file():
        header = (root / "metadata.csv").open("rb").readline().decode("utf-8-sig", "replace")
        if {"id", "file"} <= {name.strip().strip('"') for name in header.split(",")}:
            return "corpus"
    return "folder"
