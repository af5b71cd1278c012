"""What a data source is: something that yields records and tells what it had to leave out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from diffsound.data.record import Record


@dataclass
class SourceReport:
    """What a source left out (skipped clips) and what it put right or found odd (notes)."""

    skipped: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def skip(self, clip_id: str, reason: str) -> None:
        self.skipped.append((clip_id, reason))

    def note(self, text: str) -> None:
        self.notes.append(text)


@dataclass(frozen=True)
class SourceOptions:
    """What a person may add to a source's own files.

    audio:       folder (or tar) with the audio when it is not beside the metadata.
    captions:    caption table of a folder source.
    licence, author: for sources that do not state them per clip.
    valid_share: share of groups a folder source puts into the split "valid".
    """

    audio: Path | None = None
    captions: Path | None = None
    licence: str | None = None
    author: str = ""
    valid_share: float = 0.0


class Source(Protocol):
    """A data set on disk. `records` gives the same records in the same order every time.

    human_captions: people wrote the captions by ear; paraphrases by rule would only dilute them.
    """

    name: str
    root: Path
    human_captions: bool

    def records(self, report: SourceReport) -> Iterator[Record]: ...
