"""What recognition found, as tables, a confusion matrix and a page to listen to."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from diffsound.audio.mel import MelConfig
from diffsound.errors import MissingExtraError
from diffsound.evaluation.html_parts import (
    ROWS,
    page,
    plain_table,
    protocol_html,
    scores_table,
    take,
    takes,
    write_page,
)
from diffsound.evaluation.media import picture_url
from diffsound.files import atomic_write

WORST = 10
_TAKES = 3  # generated sounds shown of each of the worst classes
CONFUSION = "confusion.png"


def write_confusion(
    out: Path, labels: Sequence[str], classes: Sequence[int], counts: Mapping[str, np.ndarray]
) -> None:
    """Write OUT/confusion-ROW.csv of each row, and OUT/confusion.png of all of them.

    counts: int [classes, labels] by row; classes: the labels that were asked for, as places.
    """
    asked = [labels[place] for place in classes]
    for row, table in counts.items():
        with atomic_write(out / f"confusion-{row}.csv") as temporary:
            temporary.write_text(_csv(asked, labels, table), encoding="utf-8", newline="")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "eval") from error
    side = 1.5 + 0.16 * len(labels)
    figure = Figure(figsize=(side * len(counts), 1.5 + 0.16 * len(asked)), layout="constrained")
    panels = figure.subplots(1, len(counts), squeeze=False)[0]
    for panel, (row, table) in zip(panels, counts.items(), strict=True):
        panel.imshow(
            table / np.maximum(table.sum(axis=1, keepdims=True), 1),
            cmap="magma", vmin=0, vmax=1, aspect="auto",
        )  # fmt: skip
        panel.set_xticks(range(len(labels)), labels, rotation=90, fontsize=6)
        panel.set_yticks(range(len(asked)), asked, fontsize=6)
        panel.set_title(f"{ROWS[row]}: class down, heard as across", fontsize=9)
    with atomic_write(out / CONFUSION) as temporary:
        figure.savefig(temporary, dpi=110)


def write_html(out: Path, report: Mapping[str, Any]) -> Path:
    """Write OUT/report.html from the report and the sounds beside it."""
    worst = report["classes"][:WORST]
    return write_page(
        out,
        page(
            f"Recognition of {report['title']}",
            f"<p>{report['protocol']['sentences']} sentences; every clip is named by classifier "
            f"{escape(report['protocol']['classifier'])}; shares are averaged over classes.</p>"
            f"{scores_table(report['rows'])}{_ratios(report)}"
            f"<h2>Cleanliness</h2>{_cleanliness(report['cleanliness'])}"
            f"<h2>Worst classes</h2>{''.join(_class(out, report, entry) for entry in worst)}"
            f"<h2>All classes</h2>{_classes(report['classes'])}"
            f"<h2>Confusion</h2><img style='max-width:100%' alt='confusion matrix' "
            f"src='{_picture(out / CONFUSION)}'>"
            f"{protocol_html(report['protocol'])}",
        ),
    )


def _ratios(report: Mapping[str, Any]) -> str:
    names = list(report["rows"]["real"]["scores"])
    lines = [
        [ROWS[row], *(_number(ratio[name]) for name in names)]
        for row, ratio in report["ratios"].items()
    ]
    spread = report["spread"]
    varied = "No class has two sounds and two real clips: how varied they are is not known."
    if spread["ratio"] is not None:
        varied = (
            f"Two sounds of a class differ {spread['ratio']:.2f} times as much as two real clips "
            f"of it do (mean of {spread['classes']} classes; 1 is as varied as real)."
        )
    table = plain_table(["", *names], lines)
    return f"<h2>As a share of real clips</h2>{table}<p>{varied}</p>"


def _cleanliness(rows: Mapping[str, Mapping[str, Any]]) -> str:
    heads = {
        "clipped_share": "clipped clips",
        "offset_db": "offset, dBFS",
        "silence_share": "silent frames",
        "silent_clips": "silent clips",
        "cut_share": "cut off",
        "seam_ratio": "steps at columns",
        "spectrum_distance_db": "spectrum to real, dB",
        "loudness_lufs": "loudness, LUFS",
        "loudness_spread_lu": "its spread, LU",
    }
    lines = [[ROWS[row], *(_number(found[key]) for key in heads)] for row, found in rows.items()]
    note = (
        "The real clips' spectrum is every second clip of a class against the others. Steps at "
        "columns: the mels' change from column to column to that within them, 1 where none show."
    )
    return plain_table(["", *heads.values()], lines) + f"<p><small>{note}</small></p>"


def _class(out: Path, report: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    config = MelConfig.model_validate(report["protocol"]["mel"])
    mine = [clip for clip in report["clips"] if clip["asked"] == entry["label"]][:_TAKES]
    figures = [take(out / "real" / f"{entry['example']}.wav", config, "real")]
    figures += [
        take(
            out / "generated" / f"{clip['id']}.wav", config,
            f"“{clip['prompt']}” · heard as {clip['heard']} ({clip['probability']:.0%})",
        )
        for clip in mine
    ]  # fmt: skip
    heard = ", ".join(f"{name} {count}" for name, count in entry["heard_as"].items())
    shares = f"top-1 {entry['generated']['top-1']:.0%} (real {entry['real']['top-1']:.0%})"
    return takes(entry["label"], f"{shares}; heard as {heard}", figures)


def _classes(entries: Sequence[Mapping[str, Any]]) -> str:
    rows = ("real", "codec", "generated")
    head = ["class", *(f"{row} top-{k}" for row in rows for k in (1, 5)), "heard as"]
    lines = [
        [
            entry["label"],
            *(f"{entry[row][f'top-{k}']:.0%}" for row in rows for k in (1, 5)),
            ", ".join(f"{name} {count}" for name, count in list(entry["heard_as"].items())[:3]),
        ]
        for entry in entries
    ]
    return plain_table(head, lines)


def _picture(path: Path) -> str:
    from PIL import Image

    with Image.open(path) as picture:
        return picture_url(picture)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _csv(asked: Sequence[str], labels: Sequence[str], counts: np.ndarray) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["asked", *labels])
    writer.writerows([name, *line] for name, line in zip(asked, counts.tolist(), strict=True))
    return buffer.getvalue()
