"""How well texts of two events are followed, as a page to read and listen to."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from diffsound.audio.mel import MelConfig
from diffsound.evaluation.html_parts import (
    page,
    plain_table,
    protocol_html,
    take,
    takes,
    write_page,
)

SHOWN = 12
_ROWS = {
    "scenes": "true scenes (what the measure can find)",
    "generated": "generated from text",
    "chance": "generated, by another text's events (chance)",
}


def write_html(out: Path, report: Mapping[str, Any]) -> Path:
    """Write OUT/report.html from the report and the sounds beside it."""
    protocol = report["protocol"]
    return write_page(
        out,
        page(
            f"How {report['title']} follows texts of two events",
            f"<p>An event is present if it is {escape(protocol['present'])}; in order if "
            f"{escape(protocol['in order'])}.</p>{_shares(report)}"
            f"<h2>By join: both present</h2>{_joins(report['rows'])}"
            f"<h2>In the distance</h2>{_distance(report['distance'])}"
            f"<h2>Listen</h2>{_examples(out, report)}{protocol_html(protocol)}",
        ),
    )


def _shares(report: Mapping[str, Any]) -> str:
    names = list(report["rows"]["generated"]["scores"])
    lines = [
        [
            told,
            *(_share(report["rows"][row]["scores"][name]) for name in names),
            _percent(report["false_alarms"].get(row)),
        ]
        for row, told in _ROWS.items()
    ]
    return plain_table(["", *names, "false alarms per class"], lines)


def _joins(rows: Mapping[str, Any]) -> str:
    joins = list(rows["generated"]["joins"])
    return plain_table(
        ["", *joins],
        [
            [told, *(_percent(rows[row]["joins"][join]) for join in joins)]
            for row, told in _ROWS.items()
        ],
    )


def _distance(found: Mapping[str, Any]) -> str:
    head = ["", "pairs", "level, dB", "tilt, dB/octave", "quieter and duller"]
    lines = [
        [
            _ROWS[row],
            str(one["pairs"]),
            *(_mean(one[name]) for name in ("level_db", "tilt_db_per_octave")),
            _percent(one["quieter_and_duller"]),
        ]
        for row, one in found.items()
    ]
    return plain_table(head, lines)


def _examples(out: Path, report: Mapping[str, Any]) -> str:
    config = MelConfig.model_validate(report["protocol"]["mel"])
    parts = []
    for task in report["tasks"][:SHOWN]:
        figures = [
            take(out / row / f"{task['id']}{end}.wav", config, told)
            for row, end, told in (
                ("generated", ".0", f"generated · heard: {', '.join(task['heard'][:6])}"),
                ("scenes", "", "a true scene of the two"),
            )
        ]
        state = {True: "present", False: "missing"}
        small = ", ".join(
            f"{task[of]} {state[task[f'{of}_present']]}" for of in ("first", "second")
        )
        parts.append(takes(f"“{task['text']}”", small, figures))
    return "".join(parts)


def _share(score: Mapping[str, Any]) -> str:
    if score["value"] is None:
        return "not available"
    interval = "" if score["low"] is None else f" ({score['low']:.0%} to {score['high']:.0%})"
    return f"{score['value']:.0%}{interval}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _mean(found: Mapping[str, float | None]) -> str:
    if found["mean"] is None:
        return "–"
    interval = "" if found["low"] is None else f" ({found['low']:.1f} to {found['high']:.1f})"
    return f"{found['mean']:.1f}{interval}"
