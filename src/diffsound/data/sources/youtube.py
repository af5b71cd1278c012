"""AudioSet and AudioCaps: segments of YouTube videos, found among the files people keep.

AudioSet
  DIR/class_labels_indices.csv  and/or  DIR/ontology.json
  DIR/balanced_train_segments.csv, unbalanced_train_segments.csv, eval_segments.csv (any of them)
  audio below DIR (or --audio): YTID.wav, YYTID.wav, YTID_30.wav, YTID_30000_40000.wav …, or tars
AudioCaps
  DIR/train.csv, val.csv, test.csv: one caption per clip in train, five in val and test
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from diffsound.data.licences import normalise_licence
from diffsound.data.record import AudioLocation, Record, one_line, safe_id
from diffsound.data.sources.base import (
    AudioFinder,
    SourceOptions,
    SourceReport,
    read_csv,
    read_text,
    split_list,
)
from diffsound.errors import DataError
from diffsound.files import parse_json


def segment_stems(video: str, start: float, end: float) -> Iterator[str]:
    """File stems under which a segment is commonly kept, the most exact first.

    A leading "Y" is common too: it keeps ids that start with "-" from looking like options.
    """
    for prefix in (video, f"Y{video}"):
        yield f"{prefix}_{start:.3f}_{end:.3f}"
        yield f"{prefix}_{round(start * 1000)}_{round(end * 1000)}"
        yield f"{prefix}_{start:g}_{end:g}"
        yield f"{prefix}_{round(start * 1000)}"
        yield f"{prefix}_{start:g}"
        yield prefix


def segment_location(found: AudioLocation, start: float, end: float) -> AudioLocation:
    """The segment of a found file (which may be the segment already, or the whole video)."""
    return replace(found, start=start, end=end)


COLUMNS = ("YTID", "start_seconds", "end_seconds", "positive_labels")


class AudioSet:
    """Records with labels (display names) and no captions; eval is the split "test"."""

    name = "audioset"
    human_captions = False

    def __init__(self, root: Path, options: SourceOptions) -> None:
        self.root = root
        self.options = options

    def records(self, report: SourceReport) -> Iterator[Record]:
        lists = sorted(self.root.glob("*segments*.csv"))
        if not lists:
            raise DataError(f"{self.root} has no AudioSet segment list (*_segments.csv)")
        names = label_names(self.root, report)
        finder = AudioFinder(self.options.audio or self.root, report)
        strangers: Counter[str] = Counter()
        for path in lists:
            split = "test" if path.name.startswith("eval") else "train"
            for row in read_csv(path, COLUMNS, report, columns=COLUMNS, comment="#"):
                try:
                    start, end = float(row["start_seconds"]), float(row["end_seconds"])
                except ValueError:
                    if row["YTID"] != "YTID":  # a header row without its comment mark
                        report.note(f"{path.name}: the times of {row['YTID']} are not numbers")
                    continue
                clip_id = safe_id(f"{row['YTID']}_{round(start)}")
                mids = split_list(row["positive_labels"])
                strangers.update(mid for mid in mids if mid not in names)
                labels = tuple(names[mid] for mid in mids if mid in names)
                if not labels:
                    report.skip(clip_id, "none of its labels is in the ontology")
                    continue
                found = finder.find(segment_stems(row["YTID"], start, end))
                if found is None:
                    report.skip(clip_id, "missing: no audio file of this id")
                    continue
                yield Record(
                    id=clip_id,
                    audio=segment_location(found, start, end),
                    labels=labels,
                    split=split,
                    licence=normalise_licence(self.options.licence),
                    licence_stated=self.options.licence or "",
                    author=self.options.author,
                    url=f"https://www.youtube.com/watch?v={row['YTID']}",
                    source=self.name,
                    group=row["YTID"],
                    seconds=end - start,
                )
        for mid, count in sorted(strangers.items()):
            report.note(f"the label {mid} of {count} segments is not in the ontology; skipped")


def label_names(root: Path, report: SourceReport) -> dict[str, str]:
    """Machine id -> display name, from the ontology and the list of class labels."""
    names: dict[str, str] = {}
    ontology, classes = root / "ontology.json", root / "class_labels_indices.csv"
    if not ontology.is_file() and not classes.is_file():
        raise DataError(f"{root} has neither ontology.json nor class_labels_indices.csv")
    if ontology.is_file():
        try:
            names.update(
                (node["id"], node["name"]) for node in parse_json(read_text(ontology, report))
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{ontology} is not AudioSet's ontology: {error}") from error
    if classes.is_file():
        for row in read_csv(classes, ("mid", "display_name"), report):
            names[row["mid"]] = row["display_name"]
    return names


REQUIRED = ("youtube_id", "start_time", "caption")
SPLITS = {"train": "train", "val": "valid", "test": "test"}
CLIP_SECONDS = 10.0


class AudioCaps:
    """Records with captions; rows of one clip are gathered into one record."""

    name = "audiocaps"
    human_captions = True

    def __init__(self, root: Path, options: SourceOptions) -> None:
        self.root = root
        self.options = options

    def records(self, report: SourceReport) -> Iterator[Record]:
        tables = {name: self.root / f"{name}.csv" for name in SPLITS}
        if not any(path.is_file() for path in tables.values()):
            raise DataError(f"{self.root} has none of train.csv, val.csv and test.csv")
        finder = AudioFinder(self.options.audio or self.root, report)
        for name, path in tables.items():
            if not path.is_file():
                report.note(f"there is no {path.name}")
                continue
            for (video, start), captions in captions_by_clip(path, report).items():
                clip_id = safe_id(f"{video}_{round(start)}")
                end = start + CLIP_SECONDS
                found = finder.find(segment_stems(video, start, end))
                if found is None:
                    report.skip(clip_id, "missing: no audio file of this id")
                    continue
                yield Record(
                    id=clip_id,
                    audio=segment_location(found, start, end),
                    captions=captions,
                    split=SPLITS[name],
                    licence=normalise_licence(self.options.licence),
                    licence_stated=self.options.licence or "",
                    author=self.options.author,
                    url=f"https://www.youtube.com/watch?v={video}",
                    source=self.name,
                    group=video,
                    seconds=CLIP_SECONDS,
                )


def captions_by_clip(path: Path, report: SourceReport) -> dict[tuple[str, float], tuple[str, ...]]:
    """(video, start) -> its captions in table order; repeats are kept, metrics count them."""
    gathered: dict[tuple[str, float], list[str]] = {}
    for row in read_csv(path, REQUIRED, report):
        caption = one_line(row["caption"])
        try:
            key = (row["youtube_id"], float(row["start_time"]))
        except ValueError:
            report.note(f"{path.name}: the start of {row['youtube_id']} is not a number")
            continue
        if not caption:
            report.note(f"{path.name}: an empty caption of {row['youtube_id']}; skipped")
            continue
        gathered.setdefault(key, []).append(caption)
    return {key: tuple(captions) for key, captions in gathered.items()}
