"""The paper's tables, and one of our own: their rows and printed figures, whether our rows come in
the paper's order, and a measured table as Markdown, CSV, picture and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, PositiveInt, model_validator

from diffsound.config import Config
from diffsound.errors import InputError
from diffsound.evaluation.metrics import Score
from diffsound.evaluation.pages import new_figure
from diffsound.evaluation.sets import write_json
from diffsound.files import atomic_write, write_text


class Row(Config):
    """One row; see paper_tables.yaml."""

    id: str
    bundle: str = ""
    keys: tuple[str, ...]
    paper: tuple[float | None, ...]
    steps: PositiveInt | None = None
    stride: PositiveInt = 1
    keep: int | None = Field(default=None, ge=1, le=10)
    sampling: dict[str, Any] = Field(default_factory=dict)

    @property
    def model(self) -> str:
        """The name under which a config gives this row's bundle."""
        return self.bundle or self.id

    def stride_of(self, timesteps: int) -> int | None:
        """The time stride of a decoder trained with a chain of `timesteps`; None: every step.

        The paper's T at inference is read as the number of steps that the whole trained chain is
        cut into, and Δt as a stride over those: T = 25 with Δt = 3 on a chain of 100 is a stride of
        12, and 9 evaluations. "T denotes the start step" could also mean a chain that begins at
        step 25 of 100; table 5, which calls the same numbers inference steps, says otherwise.
        """
        if self.steps is None:
            return None
        return min(max(1, round(self.stride * timesteps / self.steps)), timesteps)


class PaperTable(Config):
    """A table's columns, metrics and rows. ours: it is not one of the paper's."""

    title: str
    columns: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: tuple[Row, ...]
    ours: bool = False

    @model_validator(mode="after")
    def _check(self) -> PaperTable:
        for row in self.rows:
            if len(row.keys) != len(self.columns) or len(row.paper) != len(self.metrics):
                raise ValueError(f"row {row.id} does not fit the columns")
        return self

    @property
    def models(self) -> list[str]:
        """The bundles the rows need, each once."""
        return list(dict.fromkeys(row.model for row in self.rows))


@cache
def _tables() -> dict[int, PaperTable]:
    text = (resources.files("diffsound.evaluation") / "paper_tables.yaml").read_text("utf-8")
    return {number: PaperTable.model_validate(t) for number, t in yaml.safe_load(text).items()}


def paper_table(number: int) -> PaperTable:
    """One of the tables 2 to 7, or 8, which is ours."""
    try:
        return _tables()[number]
    except KeyError:
        hint = "table 1 is the listening test: diffsound evaluate listen" if number == 1 else ""
        raise InputError(f"there is no table {number} to repeat, only 2 to 8; {hint}") from None


Scores = Mapping[str, Mapping[str, Score]]  # by row id, then by metric


@dataclass(frozen=True)
class Agreement:
    """Pairs of rows that the paper puts in an order, by one metric.

    same, reversed: pairs in the paper's order here and in the opposite one; clear_same and
    clear_reversed: those of them whose intervals do not overlap. best: the row that is best here,
    paper_best: in the paper.
    """

    metric: str
    same: int
    reversed: int
    clear_same: int
    clear_reversed: int
    best: str
    paper_best: str

    @property
    def verdict(self) -> str:
        if self.clear_reversed:
            return "disagrees" if not self.clear_same else "agrees in part"
        return "agrees" if self.clear_same else "cannot be told"

    def __str__(self) -> str:
        pairs = self.same + self.reversed
        best = "the paper's" if self.best == self.paper_best else f"{self.best}, not the paper's"
        return (
            f"{self.metric}: the order {self.verdict}. {self.same} of {pairs} pairs of rows are as "
            f"in the paper ({self.clear_same} beyond their intervals), {self.reversed} reversed "
            f"({self.clear_reversed} beyond); the best row is {best}."
        )


def agreement(table: PaperTable, rows: Scores) -> list[Agreement]:
    """One for every metric that at least two rows have, here and in the paper."""
    found = []
    for place, metric in enumerate(table.metrics):
        printed = {row.id: row.paper[place] for row in table.rows}
        measured = {
            row.id: rows[row.id][metric]
            for row in table.rows
            if printed[row.id] is not None
            and metric in rows.get(row.id, {})
            and rows[row.id][metric].value is not None
        }
        if len(measured) < 2:
            continue
        sign = 1 if next(iter(measured.values())).better == "lower" else -1
        paper = {name: sign * (printed[name] or 0.0) for name in measured}
        ours = {name: sign * (score.value or 0.0) for name, score in measured.items()}
        counts = {"same": 0, "reversed": 0, "clear_same": 0, "clear_reversed": 0}
        for a, b in combinations(measured, 2):
            if paper[a] == paper[b] or ours[a] == ours[b]:
                continue
            kind = "same" if (paper[a] < paper[b]) == (ours[a] < ours[b]) else "reversed"
            counts[kind] += 1
            counts[f"clear_{kind}"] += not _overlap(measured[a], measured[b])
        best, paper_best = (min(values, key=values.__getitem__) for values in (ours, paper))
        found.append(Agreement(metric, **counts, best=best, paper_best=paper_best))
    return found


def _overlap(a: Score, b: Score) -> bool:
    """Whether two intervals share a value; a score without one is taken as exact."""
    assert a.value is not None
    assert b.value is not None
    low_a, high_a = (a.value, a.value) if a.low is None or a.high is None else (a.low, a.high)
    low_b, high_b = (b.value, b.value) if b.low is None or b.high is None else (b.low, b.high)
    return low_a <= high_b and low_b <= high_a


# Of our own, beside the paper's: SPICE's stand-in, an unbiased relative of FID, the matcher's
# opinion, and seconds of other kinds than the paper's.
_MORE = ("scene graph", "kernel distance", "match", "s/sound", "s/mel, no cache")
# What the paper's evaluation has (section V-B and VIII-D): 494 clips, ten sounds for each.
_CLIPS, _SOUNDS = 300, 10


def write_table(
    out: Path, number: int, table: PaperTable, rows: Scores, settings: Mapping[str, Any]
) -> list[Path]:
    """Write table-N.md, .csv, .json and .png."""
    stem = f"table-{number}"
    files = [out / f"{stem}{suffix}" for suffix in (".md", ".csv", ".json", ".png")]
    texts = (markdown(number, table, rows, settings), as_csv(table, rows))
    for path, text in zip(files, texts, strict=False):
        write_text(path, text, newline="")
    scores = {row: {name: s.to_json() for name, s in found.items()} for row, found in rows.items()}
    write_json(files[2], {"settings": dict(settings), "rows": scores})
    draw(files[3], number, table, rows)
    return files


def shown_metrics(table: PaperTable, rows: Scores) -> list[str]:
    """The paper's metrics, then ours that any row has; seconds only where the paper has them."""
    timed = any(name.startswith("s/") for name in table.metrics)
    extra = [
        name
        for name in _MORE
        if (timed or not name.startswith("s/"))
        and any(_value(found, name) is not None for found in rows.values())
    ]
    return [*table.metrics, *extra]


def protocol(settings: Mapping[str, Any]) -> str:
    """What the figures rest on, for a table's head; a quick look says so."""
    clips, texts, samples = (settings[k] for k in ("examples", "texts", "samples_per_text"))
    sounds = texts * samples
    said = (
        f"{clips} clips, {texts} captions of them, {samples} sound{'s' * (samples > 1)} for each: "
        f"{sounds} sounds, {sounds / clips:.3g} a clip"
    )
    if settings.get("ranked_by"):
        said += f"; candidates ranked by {settings['ranked_by']}"
    if clips < _CLIPS:
        said = f"**A quick look**, {said}; FID needs about {_CLIPS} clips"
    elif sounds < _SOUNDS * clips:
        said += f" (the paper: {_SOUNDS})"
    return said


def markdown(number: int, table: PaperTable, rows: Scores, settings: Mapping[str, Any]) -> str:
    """Our figures with their intervals, the paper's in parentheses."""
    metrics = shown_metrics(table, rows)
    head = [*table.columns, *metrics]
    measured = f"{len(rows)} of {len(table.rows)} rows are measured. "
    lines = [
        f"# Table {number}: {table.title}",
        "",
        f"{protocol(settings)}. {measured * (len(rows) < len(table.rows))}[95 % interval]"
        + (
            "."
            if table.ours
            else "; in parentheses the paper's, of other data and a larger model: "
            "compare the order of rows, not the numbers. `–`: not measured."
        ),
        "",
        "| " + " | ".join(head) + " |",
        "|" + " --- |" * len(head),
    ]
    for row in table.rows:
        paper = dict(zip(table.metrics, row.paper, strict=True))
        cells = [_cell(rows.get(row.id, {}).get(name), paper.get(name)) for name in metrics]
        keys = _with_encoder(table, row, settings.get("text_encoders", {}))
        lines.append("| " + " | ".join([*keys, *cells]) + " |")
    verdicts = [f"- {found}" for found in agreement(table, rows)]
    notes = dict.fromkeys(
        f"- {name}: {score.note}"
        for found in rows.values()
        for name, score in found.items()
        if score.note and name in metrics
    )
    return "\n".join([*lines, "", *verdicts, *[""] * bool(verdicts), *notes, ""])


def _with_encoder(table: PaperTable, row: Row, encoders: Mapping[str, str]) -> list[str]:
    """A row's keys; beside the paper's text encoder the one that is used here."""
    used = encoders.get(row.model)
    return [
        f"{key} (here {used})" if column == "text encoder" and used and used != key.lower() else key
        for column, key in zip(table.columns, row.keys, strict=True)
    ]


def as_csv(table: PaperTable, rows: Scores) -> str:
    """One line per row: keys, then for each metric ours, its interval, and the paper's."""
    metrics = shown_metrics(table, rows)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    ends = ("", " low", " high", " paper")
    writer.writerow(["row", *table.columns, *(f"{m}{end}" for m in metrics for end in ends)])
    for row in table.rows:
        paper = dict(zip(table.metrics, row.paper, strict=True))
        line: list[Any] = [row.id, *row.keys]
        for name in metrics:
            score = rows.get(row.id, {}).get(name)
            ours = (None, None, None) if score is None else (score.value, score.low, score.high)
            line += ["" if value is None else value for value in (*ours, paper.get(name))]
        writer.writerow(line)
    return buffer.getvalue()


def draw(path: Path, number: int, table: PaperTable, rows: Scores) -> None:
    """A panel per metric: our bars with intervals, the paper's figures as marks on an axis above.

    Two axes, since the scales differ; what can be compared is the order of the rows.
    """
    metrics = shown_metrics(table, rows)
    figure = new_figure(3.4 * len(metrics) + 1.5, 1.6 + 0.32 * len(table.rows))
    panels = figure.subplots(1, len(metrics), squeeze=False, sharey=True)[0]
    places = list(range(len(table.rows)))
    for panel, name in zip(panels, metrics, strict=True):
        for place, row in enumerate(table.rows):
            score = rows.get(row.id, {}).get(name)
            if score is None or score.value is None:
                continue
            panel.barh(place, score.value, height=0.6, color="#b5367a")
            if score.low is not None and score.high is not None:
                panel.plot((score.low, score.high), (place, place), color="black", linewidth=1.2)
        panel.set_xlabel(f"{name}, ours (bars)", fontsize=8)
        if name in table.metrics:
            above = panel.twiny()
            values = [row.paper[table.metrics.index(name)] for row in table.rows]
            known = [(v, at) for at, v in enumerate(values) if v is not None]
            above.plot(*zip(*known, strict=True), "D", color="#1b7f79", markersize=4)
            above.set_xlim(left=0)
            above.set_xlabel(f"{name}, paper (marks)", fontsize=8)
    panels[0].set_yticks(places, [" · ".join(row.keys) for row in table.rows], fontsize=8)
    panels[0].invert_yaxis()
    figure.suptitle(f"Table {number}: {table.title}", fontsize=10)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=110)


def _value(found: Mapping[str, Score], name: str) -> float | None:
    return found[name].value if name in found else None


def _cell(score: Score | None, paper: float | None) -> str:
    printed = "" if paper is None else f" ({paper:g})"
    if score is None:
        return f"–{printed}"
    if score.value is None:
        return f"not available{printed}"
    interval = "" if score.low is None else f" [{score.low:.3g}, {score.high:.3g}]"
    return f"{score.value:.4g}{interval}{printed}"
