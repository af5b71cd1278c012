"""What is in a prepared folder: as numbers, and as an HTML page with spectrograms and players."""

from __future__ import annotations

import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diffsound import html
from diffsound.audio.io import encode_audio
from diffsound.audio.spectrogram import spectrogram_image
from diffsound.config import Config
from diffsound.data.captions import caption_report
from diffsound.data.shards import Duplicates, PreparedData, Rejected, writing

_THUMBNAIL = (250, 84)
# A page with every rejected clip of a large set would not open; the index has them all.
_LISTED = 500


class Summary(Config):
    """Counts of a prepared folder; every mapping is sorted by count, largest first."""

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
    tokens: tuple[str, ...]  # fingerprints of the codecs that have tokens
    text: tuple[str, ...]  # fingerprints of the text encoders

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


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


def write_report(data: PreparedData, path: str | Path, *, clips: int = 60, seed: int = 0) -> None:
    """Write the page. clips: number of clips shown and playable, drawn with the seed."""
    with writing(path):
        html.write_page(path, report_html(data, clips=clips, seed=seed))


def report_html(data: PreparedData, *, clips: int = 60, seed: int = 0) -> str:
    """The page as text."""
    summary = summarise(data)
    count = min(clips, len(data))
    shown = sorted(
        np.random.default_rng(seed).choice(len(data), size=count, replace=False).tolist()
    )
    return html.render(
        "data.html",
        styles=("page.css", "data.css"),
        scripts=("data.js",),
        title=Path(summary.folder).resolve().name,
        facts=_facts(summary),
        charts=_charts(data, summary),
        rejected=[(clip.id, clip.reason) for clip in summary.rejected_clips],
        rejected_by_reason=summary.rejected,
        duplicates=[
            (", ".join(group.ids), f"{group.correlation:.2f}") for group in summary.near_duplicates
        ],
        across_splits=summary.duplicates_across_splits,
        notes=[(note,) for note in summary.notes],
        listed=_LISTED,
        clips=[_card(data, place) for place in shown],
        total=len(data),
    )


def histogram(values: Iterable[float], edges: Sequence[float], unit: str = "") -> dict[str, int]:
    """Counts between the edges, with readable names; the last bin includes its upper edge."""
    counts, _ = np.histogram(list(values), bins=list(edges))
    names = [f"{low:g}–{high:g}{unit}" for low, high in itertools.pairwise(edges)]
    return {name: int(count) for name, count in zip(names, counts, strict=True)}


def _facts(summary: Summary) -> dict[str, str]:
    return {
        "clips": f"{summary.clips:,}",
        "hours": f"{summary.hours:.2f}",
        "labels": f"{len(summary.labels):,}",
        "captions": f"{summary.captions['captions']:,}",
        "words": f"{summary.captions['vocabulary']:,}",
        "rejected": f"{len(summary.rejected_clips):,}",
        "near-duplicate groups": f"{len(summary.near_duplicates):,}",
        "megabytes": f"{summary.megabytes:,.0f}",
    }


def _charts(data: PreparedData, summary: Summary) -> dict[str, Mapping[str, int]]:
    seconds = [record.seconds or 0.0 for record in data.records]
    top = max(10.0, float(np.ceil(max(seconds, default=10.0))))
    lengths = Counter(len(text.split()) for record in data.records for text in record.captions)
    return {
        "duration": histogram(seconds, (0, 0.25, 0.5, 1, 2, 3, 4, 5, 7.5, top), " s"),
        "caption length": {f"{n} words": lengths[n] for n in sorted(lengths)[:14]},
        "licence": summary.licences,
        "split": summary.splits,
        "source": dict(itertools.islice(summary.sources.items(), 12)),
        "most frequent labels": dict(itertools.islice(summary.labels.items(), 30)),
    }


def _card(data: PreparedData, place: int) -> dict[str, Any]:
    """What the template shows of one clip."""
    record = data.records[place]
    picture = io.BytesIO()
    spectrogram_image(data.mel(place), size=_THUMBNAIL).save(picture, format="PNG", optimize=True)
    sound = encode_audio(data.wave(place), data.index.mel.sample_rate, "ogg")
    return {
        "record": record,
        "picture": html.data_url(picture.getvalue(), "image/png"),
        "sound": html.data_url(sound, "audio/ogg"),
        "credit": " · ".join(filter(None, (record.title, record.author, record.licence))),
        # Escaping does not help against a "javascript:" address.
        "link": record.url if record.url.startswith(("http://", "https://")) else "",
    }


def _counts(values: Iterable[str]) -> dict[str, int]:
    ordered = sorted(Counter(values).items(), key=lambda item: (-item[1], item[0]))
    return dict(ordered)


def _folders(data: PreparedData, kind: str) -> tuple[str, ...]:
    parent = data.folder / kind
    return tuple(sorted(path.name for path in parent.iterdir())) if parent.is_dir() else ()
