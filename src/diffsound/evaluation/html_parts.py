"""Pieces of an evaluation's HTML page, which is one file that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from diffsound.audio.mel import MelConfig
from diffsound.audio.spectrogram import spectrogram_image
from diffsound.evaluation.clips import FileClip
from diffsound.evaluation.media import audio_url, mel_of, picture_url
from diffsound.files import atomic_write

_PICTURE = (260, 90)
ROWS = {
    "real": "real clips",
    "vocoder": "vocoder alone (real mel → wave)",
    "codec": "codec + vocoder (real mel → tokens → wave)",
    "generated": "generated from text",
}
_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:1200px;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse}th,td{padding:.25rem .9rem .25rem 0;text-align:left;
vertical-align:top}th{border-bottom:1px solid #8888}td small{opacity:.7;display:block}
.charts{display:flex;flex-wrap:wrap;gap:1.5rem}figure{margin:0}
figcaption{font-size:.85rem;opacity:.8}svg text{font-size:11px;fill:currentColor}
svg rect{fill:#b5367a}svg line{stroke:currentColor;stroke-width:1.5}
.example{border-top:1px solid #8886;padding:.6rem 0}.example h3{font-size:1rem;margin:.2rem 0}
.takes{display:flex;flex-wrap:wrap;gap:.8rem}.takes figure{width:260px}
.takes img{width:100%;height:90px;display:block}.takes audio{width:100%;height:34px}
.warning{border-left:4px solid #e55064;padding-left:.8rem}
pre{overflow:auto;border:1px solid #8886;border-radius:8px;padding:.8rem}
"""


def write_page(out: Path, text: str) -> Path:
    """Write OUT/report.html."""
    path = out / "report.html"
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def page(title: str, body: str) -> str:
    """A whole HTML page; the title is escaped, the body is HTML already."""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<meta name='viewport' content='width=device-width'><title>{escape(title)}</title>"
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>{body}</body></html>\n"
    )


def protocol_html(protocol: Mapping[str, Any]) -> str:
    """What has to be known to read the numbers, at the end of a page."""
    shown = escape(json.dumps(protocol, indent=2, ensure_ascii=False))
    return f"<h2>Protocol</h2><pre>{shown}</pre>"


def take(path: Path, config: MelConfig, caption: str) -> str:
    """A sound in a file as spectrogram, player and caption, for a row of takes."""
    wave = FileClip(path.stem, path).wave(config.sample_rate)
    return take_of(wave, config, caption)


def take_of(wave: np.ndarray, config: MelConfig, caption: str) -> str:
    """As `take`, of a wave [samples] at the mel's rate."""
    picture = spectrogram_image(mel_of(wave, config), size=_PICTURE)
    told = escape(caption)
    return (
        f"<figure><img alt='spectrogram: {told}' src='{picture_url(picture)}'>"
        f"<audio controls preload='none' src='{audio_url(wave, config.sample_rate)}'></audio>"
        f"<figcaption>{told}</figcaption></figure>"
    )


def takes(title: str, small: str, figures: Sequence[str]) -> str:
    """Figures side by side under a title."""
    return (
        f"<div class='example'><h3>{escape(title)}</h3><small>{escape(small)}</small>"
        f"<div class='takes'>{''.join(figures)}</div></div>"
    )


def plain_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table of texts, all escaped."""
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines
    )
    return f"<table><tr>{cells}</tr>{body}</table>"


def scores_table(rows: Mapping[str, Any]) -> str:
    """Rows by metrics, each with its interval; what is not available says so."""
    metrics = list(dict.fromkeys(name for row in rows.values() for name in row["scores"]))
    better = {name: s["better"] for row in rows.values() for name, s in row["scores"].items()}
    head = "".join(
        f"<th>{escape(name)} {'↓' if better[name] == 'lower' else '↑'}</th>" for name in metrics
    )
    lines = []
    for key in (key for key in ROWS if key in rows):
        cells = "".join(f"<td>{_cell(rows[key]['scores'].get(name))}</td>" for name in metrics)
        lines.append(f"<tr><td>{escape(ROWS[key])}</td><td>{rows[key]['clips']}</td>{cells}</tr>")
    return f"<table><tr><th></th><th>clips</th>{head}</tr>{''.join(lines)}</table>"


def interval_bars(title: str, scores: Mapping[str, Mapping[str, Any]]) -> str:
    """One metric over the rows as an inline SVG figure; lines are the intervals."""
    known = {name: s for name, s in scores.items() if s["value"] is not None}
    if not known:
        return ""
    top = max(s["high"] if s["high"] is not None else s["value"] for s in known.values()) or 1.0
    left, width, row = 80, 200, 20
    scale = width / max(top, 1e-12)
    parts = []
    for place, (name, score) in enumerate(known.items()):
        y, length = place * row, max(score["value"] * scale, 1.0)
        parts.append(
            f"<text x='{left - 6}' y='{y + 14}' text-anchor='end'>{escape(name)}</text>"
            f"<rect x='{left}' y='{y + 4}' width='{length:.1f}' height='12'/>"
            f"<text x='{left + width + 8}' y='{y + 14}'>{score['value']:.3g}</text>"
        )
        if score["low"] is not None:
            low, high = (left + max(score[end], 0.0) * scale for end in ("low", "high"))
            parts.append(f"<line x1='{low:.1f}' x2='{high:.1f}' y1='{y + 10}' y2='{y + 10}'/>")
    label = escape(title)
    return (
        f"<figure><figcaption>{label}</figcaption><svg width='{left + width + 60}' "
        f"height='{len(known) * row + 4}' role='img' aria-label='{label}'>{''.join(parts)}</svg>"
        "</figure>"
    )


def _cell(score: Mapping[str, Any] | None) -> str:
    if score is None:
        return "–"
    if score["value"] is None:
        return "not available"
    interval = ""
    if score["low"] is not None:
        interval = f"<small>{score['low']:.3g} to {score['high']:.3g}</small>"
    return f"{score['value']:.4g}{interval}"
