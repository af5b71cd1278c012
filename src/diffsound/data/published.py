"""Published data sets: AudioSet, AudioCaps, ESC-50 and Clotho, in the files people keep.

AudioSet   DIR/class_labels_indices.csv and/or DIR/ontology.json; any of
           DIR/{balanced_train,unbalanced_train,eval}_segments.csv; audio below DIR (or --audio):
           YTID.wav, YYTID.wav, YTID_30.wav, YTID_30000_40000.wav …, or tars
AudioCaps  DIR/train.csv, val.csv, test.csv: one caption per clip in train, five in val and test
ESC-50     DIR/meta/esc50.csv, audio/, and LICENSE with each clip's title, author and licence
Clotho     DIR/clotho_captions_development.csv (file_name, caption_1 … caption_5), optionally
           clotho_metadata_development.csv with licences, and development/*.wav; the same for
           validation and evaluation
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from diffsound.data.record import AudioLocation, Record, one_line, safe_id
from diffsound.data.tables import (
    AudioFinder,
    Source,
    SourceReport,
    check_columns,
    inside,
    read_csv,
    read_text,
    split_list,
)
from diffsound.errors import DataError
from diffsound.files import parse_json


class YouTube(Source):
    """Segments of YouTube videos."""

    def segment(
        self,
        finder: AudioFinder,
        report: SourceReport,
        video: str,
        start: float,
        end: float,
        *,
        split: str,
        labels: tuple[str, ...] = (),
        captions: tuple[str, ...] = (),
    ) -> Iterator[Record]:
        """The segment's record; none, and a skipped clip, if its audio is missing."""
        clip_id = safe_id(f"{video}_{round(start)}")
        found = finder.find(segment_stems(video, start, end))
        if found is None:
            report.skip(clip_id, "missing: no audio file of this id")
            return
        yield Record(
            id=clip_id,
            # The file may be the segment already, or the whole video.
            audio=replace(found, start=start, end=end),
            captions=captions,
            labels=labels,
            split=split,
            url=f"https://www.youtube.com/watch?v={video}",
            source=self.name,
            group=video,
            seconds=end - start,
            **self.credit(),
        )


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


AUDIOSET_COLUMNS = ("YTID", "start_seconds", "end_seconds", "positive_labels")


class AudioSet(YouTube):
    """Records with labels (display names) and no captions; eval is the split "test"."""

    name = "audioset"

    def records(self, report: SourceReport) -> Iterator[Record]:
        lists = sorted(self.root.glob("*segments*.csv"))
        if not lists:
            raise DataError(f"{self.root} has no AudioSet segment list (*_segments.csv)")
        names = audioset_labels(self.root, report)
        finder = AudioFinder(self.audio, report)
        unknown: Counter[str] = Counter()
        for path in lists:
            split = "test" if path.name.startswith("eval") else "train"
            columns = AUDIOSET_COLUMNS
            for row in read_csv(path, columns, report, columns=columns, comment="#"):
                video = row["YTID"]
                try:
                    start, end = float(row["start_seconds"]), float(row["end_seconds"])
                except ValueError:
                    if video != "YTID":  # a header row without its comment mark
                        report.note(f"{path.name}: the times of {video} are not numbers")
                    continue
                mids = split_list(row["positive_labels"])
                unknown.update(mid for mid in mids if mid not in names)
                labels = tuple(names[mid] for mid in mids if mid in names)
                if labels:
                    yield from self.segment(
                        finder, report, video, start, end, split=split, labels=labels
                    )
                else:
                    clip_id = safe_id(f"{video}_{round(start)}")
                    report.skip(clip_id, "none of its labels is in the ontology")
        for mid, count in sorted(unknown.items()):
            report.note(f"the label {mid} of {count} segments is not in the ontology; skipped")


def audioset_labels(root: Path, report: SourceReport) -> dict[str, str]:
    """Machine id -> display name, from the ontology and the list of class labels."""
    names: dict[str, str] = {}
    ontology, classes = root / "ontology.json", root / "class_labels_indices.csv"
    if not ontology.is_file() and not classes.is_file():
        raise DataError(f"{root} has neither ontology.json nor class_labels_indices.csv")
    if ontology.is_file():
        try:
            names |= {node["id"]: node["name"] for node in parse_json(read_text(ontology, report))}
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{ontology} is not AudioSet's ontology: {error}") from error
    if classes.is_file():
        for row in read_csv(classes, ("mid", "display_name"), report):
            names[row["mid"]] = row["display_name"]
    return names


AUDIOCAPS_COLUMNS = ("youtube_id", "start_time", "caption")
AUDIOCAPS_SPLITS = {"train": "train", "val": "valid", "test": "test"}
AUDIOCAPS_SECONDS = 10.0


class AudioCaps(YouTube):
    """Records with captions; rows of one clip are gathered into one record."""

    name = "audiocaps"
    human_captions = True

    def records(self, report: SourceReport) -> Iterator[Record]:
        tables = {split: self.root / f"{name}.csv" for name, split in AUDIOCAPS_SPLITS.items()}
        if not any(path.is_file() for path in tables.values()):
            raise DataError(f"{self.root} has none of train.csv, val.csv and test.csv")
        finder = AudioFinder(self.audio, report)
        for split, path in tables.items():
            if not path.is_file():
                report.note(f"there is no {path.name}")
                continue
            for (video, start), captions in captions_by_clip(path, report).items():
                end = start + AUDIOCAPS_SECONDS
                yield from self.segment(
                    finder, report, video, start, end, split=split, captions=tuple(captions)
                )


def captions_by_clip(path: Path, report: SourceReport) -> dict[tuple[str, float], list[str]]:
    """(video, start) -> its captions in table order; repeats are kept, metrics count them."""
    gathered: dict[tuple[str, float], list[str]] = {}
    for row in read_csv(path, AUDIOCAPS_COLUMNS, report):
        caption = one_line(row["caption"])
        try:
            key = (row["youtube_id"], float(row["start_time"]))
        except ValueError:
            report.note(f"{path.name}: the start of {row['youtube_id']} is not a number")
            continue
        if caption:
            gathered.setdefault(key, []).append(caption)
        else:
            report.note(f"{path.name}: an empty caption of {row['youtube_id']}; skipped")
    return gathered


ESC50_COLUMNS = ("filename", "fold", "target", "category")
ESC50_SPLITS = {"1": "train", "2": "train", "3": "train", "4": "valid", "5": "test"}
ESC50_GROUPS = ("animals", "nature", "human", "interior", "urban")  # of targets 0–9, 10–19, …
ESC50_LICENCE = "CC-BY-NC-3.0"  # of the whole set

_LICENCE_LINE = re.compile(
    r"^- \[(?P<clip>[^\]]+?)\.\w+\]:\s+clip derived from (?P<title>.+?)\s*"
    r"\((?P<url>https?://[^\s()]+)\) by (?P<author>.+) \[(?P<licence>[^\[\]]+)\]$"
)


class Esc50(Source):
    """Folds 1–3 are "train", 4 "valid", 5 "test"; clips of one Freesound recording are a group."""

    name = "esc50"

    def records(self, report: SourceReport) -> Iterator[Record]:
        places = (self.root / "meta/esc50.csv", self.root / "esc50.csv")
        table = next((path for path in places if path.is_file()), None)
        if table is None:
            raise DataError(f"{self.root} has neither meta/esc50.csv nor esc50.csv")
        credits = esc50_credits(self.root / "LICENSE", report)
        finder = AudioFinder(self.audio, report)
        for row in read_csv(table, ESC50_COLUMNS, report):
            stem = Path(row["filename"]).stem
            # "1-100032-A-0": the last part is the class, which LICENSE leaves out.
            clip = stem.rpartition("-")[0]
            found = finder.find((stem, clip))
            if found is None:
                report.skip(safe_id(stem), "missing: no audio file of this name")
                continue
            known = credits.get(clip, {})
            if not known:
                report.note(f"{stem} is not in LICENSE; taken as {ESC50_LICENCE}")
            label = row["category"].replace("_", " ")
            target = int(row["target"]) if row["target"].isdigit() else -1
            yield Record(
                id=safe_id(stem),
                audio=found,
                labels=(label,),
                tags=(ESC50_GROUPS[target // 10], label) if 0 <= target < 50 else (label,),
                title=known.get("title", ""),
                split=ESC50_SPLITS.get(row["fold"], "train"),
                url=known.get("url", ""),
                source=self.name,
                group=f"esc50/{clip.split('-')[1] if clip.count('-') > 1 else clip}",
                **self.credit(known.get("licence", ESC50_LICENCE), known.get("author")),
            )


def esc50_credits(path: Path, report: SourceReport) -> dict[str, dict[str, str]]:
    """Clip ("1-100032-A") -> title, url, author and licence, from ESC-50's LICENSE file."""
    if not path.is_file():
        report.note(f"there is no {path.name}; every clip is taken as {ESC50_LICENCE}")
        return {}
    credits = {}
    for line in read_text(path, report).splitlines():
        match = _LICENCE_LINE.match(line.strip())
        if match:
            fields = {name: one_line(text) for name, text in match.groupdict().items()}
            credits[fields.pop("clip")] = fields
        elif line.startswith("- ["):
            report.note(f"{path.name}: this line is not understood: {line.strip()[:80]}")
    return credits


CLOTHO_SPLITS = {"development": "train", "validation": "valid", "evaluation": "test"}


class Clotho(Source):
    """Records with several captions each; Clotho's own split names become ours."""

    name = "clotho"
    human_captions = True

    def records(self, report: SourceReport) -> Iterator[Record]:
        tables = sorted(self.root.glob("*captions*.csv"))
        if not tables:
            raise DataError(f"{self.root} has no caption table (*captions*.csv)")
        finder = AudioFinder(self.audio, report)
        for table in tables:
            split = next((name for name in CLOTHO_SPLITS if name in table.name), "train")
            credits = self._metadata(table, report)
            for row in read_csv(table, ("file_name",), report):
                columns = sorted(name for name in row if name.startswith("caption"))
                check_columns(table, columns or list(row), columns[:1] or ["caption_1"])
                name = row["file_name"]
                stem = Path(name).stem
                found = self._find(split, name, finder)
                if found is None:
                    report.skip(safe_id(stem), "missing: no audio file of this name")
                    continue
                captions = (one_line(row[column]) for column in columns)
                known = credits.get(name, {})
                yield Record(
                    id=safe_id(stem),
                    audio=found,
                    captions=tuple(dict.fromkeys(text for text in captions if text)),
                    tags=split_list(known.get("keywords", ""), ";"),
                    title=stem,
                    split=CLOTHO_SPLITS.get(split, split),
                    url=known.get("sound_link", ""),
                    source=self.name,
                    group=known.get("sound_id", "") or stem,
                    **self.credit(known.get("license"), known.get("manufacturer")),
                )

    def _metadata(self, table: Path, report: SourceReport) -> dict[str, dict[str, str]]:
        path = table.with_name(table.name.replace("captions", "metadata"))
        if not path.is_file():
            report.note(f"there is no {path.name}: licences and authors are not known")
            return {}
        return {row["file_name"]: row for row in read_csv(path, ("file_name",), report)}

    def _find(self, split: str, name: str, finder: AudioFinder) -> AudioLocation | None:
        """In the split's own folder first: two splits may use one name."""
        for folder in (self.audio / split, self.audio):
            path = inside(folder, name)
            if path is not None and path.is_file():
                return AudioLocation(str(path))
        return finder.find((Path(name).stem,))
