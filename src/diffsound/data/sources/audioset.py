"""AudioSet: segment lists, label names from the ontology, clips found by their video id.

DIR/class_labels_indices.csv  and/or  DIR/ontology.json
DIR/balanced_train_segments.csv, unbalanced_train_segments.csv, eval_segments.csv (any of them)
audio below DIR (or --audio): YTID.wav, YYTID.wav, YTID_30.wav, YTID_30000_40000.wav …, or tars
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from diffsound.data.find import AudioFinder
from diffsound.data.licences import normalise_licence
from diffsound.data.record import Record, safe_id
from diffsound.data.sources.base import SourceOptions, SourceReport
from diffsound.data.sources.youtube import segment_location, segment_stems
from diffsound.data.tables import read_csv, read_text, split_list
from diffsound.errors import DataError

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
            report.note(f"the label {mid} of {count} segments is not in the ontology; left out")


def label_names(root: Path, report: SourceReport) -> dict[str, str]:
    """Machine id -> display name, from the ontology and the list of class labels."""
    names: dict[str, str] = {}
    ontology, classes = root / "ontology.json", root / "class_labels_indices.csv"
    if not ontology.is_file() and not classes.is_file():
        raise DataError(f"{root} has neither ontology.json nor class_labels_indices.csv")
    if ontology.is_file():
        try:
            names.update(
                (node["id"], node["name"]) for node in json.loads(read_text(ontology, report))
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{ontology} is not AudioSet's ontology: {error}") from error
    if classes.is_file():
        for row in read_csv(classes, ("mid", "display_name"), report):
            names[row["mid"]] = row["display_name"]
    return names
