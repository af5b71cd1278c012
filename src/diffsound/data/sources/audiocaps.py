"""AudioCaps: train.csv, val.csv, test.csv; one caption per clip in train, five in val and test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from diffsound.data.find import AudioFinder
from diffsound.data.licences import normalise_licence
from diffsound.data.record import Record, one_line, safe_id
from diffsound.data.sources.base import SourceOptions, SourceReport
from diffsound.data.sources.youtube import segment_location, segment_stems
from diffsound.data.tables import read_csv
from diffsound.errors import DataError

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
            report.note(f"{path.name}: an empty caption of {row['youtube_id']}; left out")
            continue
        gathered.setdefault(key, []).append(caption)
    return {key: tuple(captions) for key, captions in gathered.items()}
