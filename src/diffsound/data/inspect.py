"""What is in a prepared folder, in numbers: the base of the table and of the HTML report."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from diffsound.data.captions import caption_report
from diffsound.data.index import Duplicates, Rejected
from diffsound.data.shards import PreparedData


@dataclass(frozen=True)
class Summary:
    """Counts of a prepared folder; every mapping is sorted by count, the largest first."""

    folder: str
    source: str
    clips: int
    hours: float
    shards: int
    megabytes: float
    seconds: dict[str, float]  # shortest, median, mean, longest
    splits: dict[str, int]
    sources: dict[str, int]
    labels: dict[str, int]
    licences: dict[str, int]
    captions: dict[str, Any]  # see `captions.caption_report`
    rejected: dict[str, int]  # by kind of reason
    rejected_clips: tuple[Rejected, ...]
    near_duplicates: tuple[Duplicates, ...]
    duplicates_across_splits: int
    notes: tuple[str, ...]
    tokens: tuple[str, ...]  # fingerprints of the codecs whose tokens are there
    text: tuple[str, ...]  # fingerprints of the text encoders

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        fields["rejected_clips"] = [clip.model_dump() for clip in self.rejected_clips]
        fields["near_duplicates"] = [group.model_dump() for group in self.near_duplicates]
        return fields


def summarise(data: PreparedData) -> Summary:
    """Count what a prepared folder holds."""
    index, records = data.index, data.records
    seconds = np.array([record.seconds or 0.0 for record in records] or [0.0])
    split_of = {record.id: record.split for record in records}
    return Summary(
        folder=str(data.folder),
        source=index.source,
        clips=len(records),
        hours=round(float(seconds.sum()) / 3600, 3),
        shards=len(index.shards),
        megabytes=round(sum(shard.bytes for shard in index.shards) / 1e6, 1),
        seconds={
            "shortest": round(float(seconds.min()), 2),
            "median": round(float(np.median(seconds)), 2),
            "mean": round(float(seconds.mean()), 2),
            "longest": round(float(seconds.max()), 2),
        },
        splits=_counts(record.split for record in records),
        sources=_counts(record.source for record in records),
        labels=_counts(label for record in records for label in record.labels),
        licences=_counts(record.licence for record in records),
        captions=caption_report(records),
        rejected=_counts(reason_kind(clip.reason) for clip in index.rejected),
        rejected_clips=index.rejected,
        near_duplicates=index.near_duplicates,
        duplicates_across_splits=sum(
            len({split_of[clip_id] for clip_id in group.ids}) > 1 for group in index.near_duplicates
        ),
        notes=index.notes,
        tokens=_folders(data, "tokens"),
        text=_folders(data, "text"),
    )


def reason_kind(reason: str) -> str:
    """A reason without its details, for counting: "too short: 0.031 s" is "too short"."""
    return re.split(r"[:;,]", re.sub(r"\d+(\.\d+)?", "N", reason), maxsplit=1)[0].strip()


def _counts(values: Any) -> dict[str, int]:
    ordered = sorted(Counter(values).items(), key=lambda item: (-item[1], item[0]))
    return dict(ordered)


def _folders(data: PreparedData, kind: str) -> tuple[str, ...]:
    parent = data.folder / kind
    return tuple(sorted(path.name for path in parent.iterdir())) if parent.is_dir() else ()
