"""Data sources by name; each is an adapter from a data set's own files to `Record`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from diffsound.data.sources.base import Source, SourceOptions, SourceReport
from diffsound.data.sources.clotho import Clotho
from diffsound.data.sources.esc50 import Esc50
from diffsound.data.sources.folder import REQUIRED as CORPUS_COLUMNS
from diffsound.data.sources.folder import Corpus, Folder
from diffsound.data.sources.youtube import REQUIRED as AUDIOCAPS_COLUMNS
from diffsound.data.sources.youtube import AudioCaps, AudioSet
from diffsound.errors import DataError, InputError

SOURCES: dict[str, Callable[[Path, SourceOptions], Source]] = {
    "audioset": AudioSet,
    "audiocaps": AudioCaps,
    "esc50": Esc50,
    "clotho": Clotho,
    "folder": Folder,
    "corpus": Corpus,
}

__all__ = ["SOURCES", "Source", "SourceOptions", "SourceReport", "open_source"]


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
