"""An evaluation as one HTML page: figures, plots, players and spectrograms side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from diffsound.audio.mel import MelConfig
from diffsound.audio.spectrogram import spectrogram_image
from diffsound.evaluation.clips import FileClip
from diffsound.evaluation.media import audio_url, mel_of, picture_url
from diffsound.evaluation.sets import Example, read_examples
from diffsound.files import atomic_write

SHOWN = 12  # a page with every clip would not open
_PICTURE = (260, 90)
_ROWS = {
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


def write_html(out: Path, report: Mapping[str, Any], *, shown: int = SHOWN) -> Path:
    """Write OUT/report.html from the report and the sets beside it."""
    path = out / "report.html"
    page = report_html(report, examples_html(out, report, read_examples(out)[:shown]))
    with atomic_write(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return path


def report_html(report: Mapping[str, Any], examples: str) -> str:
    """The page as text; everything that comes from data is escaped."""
    title = f"Evaluation of {escape(report['title'])}"
    protocol = escape(json.dumps(report["protocol"], indent=2, ensure_ascii=False))
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<meta name='viewport' content='width=device-width'><title>{title}</title>"
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1>"
        f"<p>{escape(report['protocol']['real_set'])}; "
        f"{report['protocol']['samples_per_text']} sound(s) per text; every row is scored by "
        f"classifier {escape(report['protocol']['classifier'])}.</p>"
        f"{scores_table(report['rows'])}{_notes(report['rows'])}"
        f"<div class='charts'>{_charts(report['rows'])}</div>"
        f"<h2>Checks</h2>{_checks(report['checks'])}"
        f"<h2>Side by side</h2>{examples}"
        f"<h2>Weakest and best clips</h2>{_extremes(report['clips'])}"
        f"<h2>Protocol</h2><pre>{protocol}</pre></body></html>\n"
    )


def scores_table(rows: Mapping[str, Any]) -> str:
    """Rows by metrics, each with its interval; what is not available says so."""
    metrics = list(dict.fromkeys(name for row in rows.values() for name in row["scores"]))
    better = {name: s["better"] for row in rows.values() for name, s in row["scores"].items()}
    head = "".join(
        f"<th>{escape(name)} {'↓' if better[name] == 'lower' else '↑'}</th>" for name in metrics
    )
    lines = []
    for key in (key for key in _ROWS if key in rows):
        cells = "".join(f"<td>{_cell(rows[key]['scores'].get(name))}</td>" for name in metrics)
        lines.append(f"<tr><td>{escape(_ROWS[key])}</td><td>{rows[key]['clips']}</td>{cells}</tr>")
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


def examples_html(out: Path, report: Mapping[str, Any], examples: Sequence[Example]) -> str:
    """Each example's real, vocoder, codec and generated sound with its spectrogram."""
    config = MelConfig.model_validate(report["protocol"]["mel"])
    rate = config.sample_rate
    guesses = {clip["id"]: clip for clip in report["clips"]}
    parts = []
    for example in examples:
        takes = []
        for row in _ROWS:
            name = f"{example.id}.0" if row == "generated" else example.id
            path = out / row / f"{name}.wav"
            if not path.exists():
                continue
            wave = FileClip(name, path).wave(rate)
            picture = spectrogram_image(mel_of(wave, config), size=_PICTURE)
            heard = guesses.get(name) if row == "generated" else None
            guess = f" · heard as {escape(heard['label'])}" if heard else ""
            takes.append(
                f"<figure><img alt='spectrogram of {row}' src='{picture_url(picture)}'>"
                f"<audio controls preload='none' src='{audio_url(wave, rate)}'></audio>"
                f"<figcaption>{row}{guess}</figcaption></figure>"
            )
        parts.append(
            f"<div class='example'><h3>“{escape(example.caption)}”</h3>"
            f"<small>{escape(example.id)}</small><div class='takes'>{''.join(takes)}</div></div>"
        )
    return "".join(parts)


def _cell(score: Mapping[str, Any] | None) -> str:
    if score is None:
        return "–"
    if score["value"] is None:
        return "not available"
    interval = ""
    if score["low"] is not None:
        interval = f"<small>{score['low']:.3g} to {score['high']:.3g}</small>"
    return f"{score['value']:.4g}{interval}"


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
    order = [row for row in _ROWS if row in rows]
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
    lines = "".join(
        f"<tr><td>{escape(clip['id'])}</td><td>{clip['kl']:.3g}</td>"
        f"<td>{'–' if clip['realism'] is None else format(clip['realism'], '.3g')}</td>"
        f"<td>{escape(clip['label'])} ({clip['probability']:.0%})</td></tr>"
        for clip in chosen
    )
    head = "<tr><th>clip</th><th>KL</th><th>realism</th><th>heard as</th></tr>"
    return f"<table>{head}{lines}</table>"
