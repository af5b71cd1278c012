"""A table as Markdown, CSV, picture and JSON, the paper's figures beside ours."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffsound.errors import MissingExtraError
from diffsound.evaluation.agreement import agreement
from diffsound.evaluation.paper_tables import PaperTable, Row
from diffsound.evaluation.scores import Score
from diffsound.evaluation.sets import write_json
from diffsound.files import atomic_write

Scores = Mapping[str, Mapping[str, Score]]  # by row id, then by metric

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
        with atomic_write(path) as temporary:
            temporary.write_text(text, encoding="utf-8", newline="")
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
    lines = [
        f"# Table {number}: {table.title}",
        "",
        f"{protocol(settings)}. [95 % interval]"
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
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "eval") from error
    metrics = shown_metrics(table, rows)
    height = 1.6 + 0.32 * len(table.rows)
    figure = Figure(figsize=(3.4 * len(metrics) + 1.5, height), layout="constrained")
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
