"""An evaluation as one HTML page: figures, plots, players and spectrograms side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from diffsound.audio.mel import MelConfig
from diffsound.evaluation.html_parts import (
    ROWS,
    interval_bars,
    page,
    plain_table,
    protocol_html,
    scores_table,
    take,
    takes,
    write_page,
)
from diffsound.evaluation.sets import Example, read_examples

SHOWN = 12  # a page with every clip would not open


def write_html(out: Path, report: Mapping[str, Any], *, shown: int = SHOWN) -> Path:
    """Write OUT/report.html from the report and the sets beside it."""
    examples = read_examples(out)
    captions = {example.id: example.caption for example in examples}
    text = report_html(
        report,
        examples_html(out, report, examples[:shown]),
        nearest_html(out, report, captions),
    )
    return write_page(out, text)


def report_html(report: Mapping[str, Any], examples: str, nearest: str) -> str:
    """The page as text; everything that comes from data is escaped."""
    return page(
        f"Evaluation of {report['title']}",
        f"<p>{escape(report['protocol']['real_set'])}; "
        f"{report['protocol']['samples_per_text']} sound(s) per text; every row is scored by "
        f"classifier {escape(report['protocol']['classifier'])}.</p>"
        f"{scores_table(report['rows'])}{_notes(report['rows'])}"
        f"<div class='charts'>{_charts(report['rows'])}</div>"
        f"<h2>Checks</h2>{_checks(report['checks'])}"
        f"<h2>Side by side</h2>{examples}"
        f"<h2>Nearest to training clips</h2>{nearest}"
        f"<h2>Weakest and best clips</h2>{_extremes(report['clips'])}"
        f"{protocol_html(report['protocol'])}",
    )


def examples_html(out: Path, report: Mapping[str, Any], examples: Sequence[Example]) -> str:
    """Each example's real, vocoder, codec and generated sound with its spectrogram."""
    config = MelConfig.model_validate(report["protocol"]["mel"])
    guesses = {clip["id"]: clip for clip in report["clips"]}
    parts = []
    for example in examples:
        figures = []
        for row in ROWS:
            name = f"{example.id}.0" if row == "generated" else example.id
            path = out / row / f"{name}.wav"
            if not path.exists():
                continue
            heard = guesses.get(name) if row == "generated" else None
            figures.append(
                take(path, config, f"{row} · heard as {heard['label']}" if heard else row)
            )
        parts.append(takes(f"“{example.caption}”", example.id, figures))
    return "".join(parts)


def nearest_html(out: Path, report: Mapping[str, Any], captions: Mapping[str, str]) -> str:
    """The generated sounds nearest to training clips, each beside the clip: copies would be here.

    captions: of the examples, by id.
    """
    found = report["checks"]
    if not found.get("nearest"):
        return "<p>Copies of training clips were not looked for.</p>"
    config = MelConfig.model_validate(report["protocol"]["mel"])
    of = {clip["id"]: clip["of"] for clip in report["clips"]}
    parts = [
        f"<p>Distances in features; below {found['suspicious_distance']:.3g} only "
        f"{found['expected_share']:.1%} of real unseen clips lie.</p>"
    ]
    for one in found["nearest"]:
        verdict = "the same recording" if one["same_recording"] else "another recording"
        figures = [
            take(out / "generated" / f"{one['id']}.wav", config, f"generated: {one['id']}"),
            take(out / "training" / f"{one['nearest']}.wav", config, f"training: {one['nearest']}"),
        ]
        told = f"distance {one['distance']:.3g}, {verdict}"
        parts.append(takes(f"“{captions[of[one['id']]]}”", told, figures))
    return "".join(parts)


def _notes(rows: Mapping[str, Any]) -> str:
    """Every distinct note once: protocols, and why a metric is missing."""
    notes = dict.fromkeys(
        f"{name}: {score['note']}"
        for row in rows.values()
        for name, score in row["scores"].items()
        if score["note"]
    )
    return "<ul>" + "".join(f"<li><small>{escape(note)}</small></li>" for note in notes) + "</ul>"


def _charts(rows: Mapping[str, Any]) -> str:
    metrics = list(dict.fromkeys(name for row in rows.values() for name in row["scores"]))
    order = [row for row in ROWS if row in rows]
    return "".join(
        interval_bars(
            name, {row: rows[row]["scores"][name] for row in order if name in rows[row]["scores"]}
        )
        for name in metrics
    )


def _checks(found: Mapping[str, Any]) -> str:
    lines = [
        f"{len(found['silent'])} of {found['clips']} generated clips are silent",
        f"{len(found['duplicates'])} groups of generated clips are one sound",
    ]
    if "copies" in found:
        lines.append(
            f"{len(found['copies'])} generated clips are copies of training clips; "
            f"{found['suspicious_share']:.1%} are suspiciously near to one "
            f"({found['expected_share']:.1%} of real unseen clips are)"
        )
    else:
        lines.append("copies of training clips were not looked for")
    if found["unreadable"]:
        lines.append(f"{len(found['unreadable'])} clips could not be read")
    bad = found["silent"] or found["duplicates"] or found.get("copies") or found["unreadable"]
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul class='{'warning' if bad else ''}'>{items}</ul>"


def _extremes(clips: Sequence[Mapping[str, Any]], count: int = 8) -> str:
    """The generated clips farthest from and nearest to their real ones, by KL."""
    ranked = sorted(clips, key=lambda clip: -(clip["kl"] or 0.0))
    chosen = ranked[:count] + ranked[count:][-count:]
    lines = [
        (
            clip["id"],
            f"{clip['kl']:.3g}",
            "–" if clip["realism"] is None else f"{clip['realism']:.3g}",
            f"{clip['label']} ({clip['probability']:.0%})",
        )
        for clip in chosen
    ]
    return plain_table(("clip", "KL", "realism", "heard as"), lines)
