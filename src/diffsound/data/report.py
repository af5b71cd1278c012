"""A prepared folder as one HTML page: numbers, histograms, spectrograms and players, no network."""

from __future__ import annotations

import base64
import io
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from diffsound.audio.io import encode_audio
from diffsound.audio.spectrogram import spectrogram_image
from diffsound.data.inspect import Summary, summarise
from diffsound.data.shards import PreparedData
from diffsound.data.tar import write_error
from diffsound.files import atomic_write

_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:1100px;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}
.facts,.charts,.clips{display:flex;flex-wrap:wrap;gap:1rem}
.facts div{border:1px solid #8886;border-radius:8px;padding:.5rem 1rem}
.facts b{display:block;font-size:1.3rem}
figure{margin:0}figcaption{font-size:.85rem;opacity:.75}
.clip{width:250px;border:1px solid #8886;border-radius:8px;overflow:hidden;font-size:.85rem}
.clip img{width:100%;height:84px;display:block}.clip audio{width:100%;height:32px}
.clip div{padding:.4rem .6rem;overflow-wrap:anywhere}.clip small{opacity:.75}
svg text{font-size:11px;fill:currentColor}svg rect{fill:#b5367a}
table{border-collapse:collapse}td{padding:.15rem .8rem .15rem 0;vertical-align:top}
td:first-child{overflow-wrap:anywhere}input{font:inherit;padding:.3rem .6rem;width:20rem}
"""
_SCRIPT = """
document.getElementById('find').addEventListener('input',event=>{
  const wanted=event.target.value.toLowerCase();
  for(const clip of document.querySelectorAll('.clip'))
    clip.style.display=clip.textContent.toLowerCase().includes(wanted)?'':'none';
});
"""
_THUMBNAIL = (250, 84)
# A page with every rejected clip of a large set would not open; the index has them all.
_LISTED = 500


def write_report(data: PreparedData, path: str | Path, *, clips: int = 60, seed: int = 0) -> None:
    """Write the page. clips: how many are shown and can be heard, drawn by the seed."""
    page = report_html(data, clips=clips, seed=seed)
    try:
        with atomic_write(path) as temporary:
            temporary.write_text(page, encoding="utf-8")
    except OSError as error:
        raise write_error(path, error) from error


def report_html(data: PreparedData, *, clips: int = 60, seed: int = 0) -> str:
    """The page as text; everything of the data set is escaped."""
    summary = summarise(data)
    count = min(clips, len(data))
    shown = sorted(
        np.random.default_rng(seed).choice(len(data), size=count, replace=False).tolist()
    )
    cards = "".join(_card(data, i) for i in shown)
    name = escape(Path(summary.folder).resolve().name)
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<meta name='viewport' content='width=device-width'><title>{name}</title>"
        f"<style>{_STYLE}</style></head><body><h1>{name}</h1>"
        f"{_facts(summary)}{_charts(data, summary)}{_problems(summary)}"
        f"<h2>{count} of {len(data)} clips</h2>"
        "<p><input id='find' type='search' placeholder='find in these clips' "
        "aria-label='find in these clips'></p>"
        f"<div class='clips'>{cards}</div><script>{_SCRIPT}</script></body></html>\n"
    )


def bars(counts: Mapping[str, float], title: str, *, width: int = 320) -> str:
    """Horizontal bars as an inline SVG figure, one per entry."""
    if not counts:
        return ""
    top = max(counts.values()) or 1
    row, label_width = 16, 130
    lines = []
    for place, (label, count) in enumerate(counts.items()):
        length = (width - label_width - 50) * count / top
        y = place * row
        short = label if len(label) <= 20 else label[:19] + "…"
        lines.append(
            f"<text x='{label_width - 6}' y='{y + 12}' text-anchor='end'>{escape(short)}</text>"
            f"<rect x='{label_width}' y='{y + 2}' width='{max(length, 1):.1f}' height='12'/>"
            f"<text x='{label_width + length + 4:.1f}' y='{y + 12}'>{count:g}</text>"
        )
    height = len(counts) * row + 4
    return (
        f"<figure><figcaption>{escape(title)}</figcaption><svg width='{width}' height='{height}' "
        f"role='img' aria-label='{escape(title)}'>{''.join(lines)}</svg></figure>"
    )


def histogram(values: Iterable[float], edges: Sequence[float], unit: str = "") -> dict[str, float]:
    """Counts between the edges, with readable names; the last bin includes its upper edge."""
    counts, _ = np.histogram(list(values), bins=list(edges))
    names = [f"{low:g}–{high:g}{unit}" for low, high in itertools.pairwise(edges)]
    return {name: int(count) for name, count in zip(names, counts, strict=True)}


def _facts(summary: Summary) -> str:
    facts = {
        "clips": f"{summary.clips:,}",
        "hours": f"{summary.hours:.2f}",
        "labels": f"{len(summary.labels):,}",
        "captions": f"{summary.captions['captions']:,}",
        "words": f"{summary.captions['vocabulary']:,}",
        "rejected": f"{len(summary.rejected_clips):,}",
        "look-alike groups": f"{len(summary.near_duplicates):,}",
        "megabytes": f"{summary.megabytes:,.0f}",
    }
    boxes = "".join(f"<div><b>{value}</b>{name}</div>" for name, value in facts.items())
    return f"<div class='facts'>{boxes}</div>"


def _charts(data: PreparedData, summary: Summary) -> str:
    seconds = [record.seconds or 0.0 for record in data.records]
    top = max(10.0, float(np.ceil(max(seconds, default=10.0))))
    lengths = Counter(len(text.split()) for record in data.records for text in record.captions)
    charts = [
        bars(histogram(seconds, (0, 0.25, 0.5, 1, 2, 3, 4, 5, 7.5, top), " s"), "duration"),
        bars({f"{n} words": lengths[n] for n in sorted(lengths)[:14]}, "caption length"),
        bars(summary.licences, "licence"),
        bars(summary.splits, "split"),
        bars(dict(list(summary.sources.items())[:12]), "source"),
        bars(dict(list(summary.labels.items())[:30]), "most frequent labels"),
    ]
    return f"<h2>What is in it</h2><div class='charts'>{''.join(charts)}</div>"


def _problems(summary: Summary) -> str:
    parts = []
    if summary.rejected_clips:
        parts.append("<h2>Rejected</h2>" + bars(summary.rejected, "by reason", width=420))
        parts.append(_listing("each one", [(c.id, c.reason) for c in summary.rejected_clips]))
    if summary.near_duplicates:
        groups = [(", ".join(g.ids), f"{g.correlation:.2f}") for g in summary.near_duplicates]
        parts.append(
            f"<h2>Look-alikes</h2><p>{len(groups)} groups of clips that sound the same, "
            f"{summary.duplicates_across_splits} of them across splits.</p>"
        )
        parts.append(_listing("each group", groups))
    if summary.notes:
        parts.append("<h2>Notes</h2>" + _listing("each note", [(n, "") for n in summary.notes]))
    return "".join(parts)


def _listing(title: str, rows: Sequence[tuple[str, str]]) -> str:
    cells = "".join(
        f"<tr><td>{escape(first)}</td><td>{escape(second)}</td></tr>"
        for first, second in rows[:_LISTED]
    )
    more = f"<p>… and {len(rows) - _LISTED} more in index.json</p>" if len(rows) > _LISTED else ""
    return f"<details><summary>{escape(title)}</summary><table>{cells}</table>{more}</details>"


def _card(data: PreparedData, i: int) -> str:
    record = data.records[i]
    buffer = io.BytesIO()
    spectrogram_image(data.mel(i), size=_THUMBNAIL).save(buffer, format="PNG", optimize=True)
    sound = encode_audio(data.wave(i), data.index.mel.sample_rate, "ogg")
    credit = " · ".join(filter(None, (record.title, record.author, record.licence)))
    link = escape(credit)
    if record.url.startswith(("http://", "https://")):
        link = f"<a href='{escape(record.url)}' rel='noreferrer'>{link or 'source'}</a>"
    return (
        f"<div class='clip'><img alt='spectrogram' src='{_inline(buffer.getvalue(), 'image/png')}'>"
        f"<audio controls preload='none' src='{_inline(sound, 'audio/ogg')}'></audio>"
        f"<div><b>{escape(record.captions[0] if record.captions else record.id)}</b><br>"
        f"{escape(', '.join(record.labels))}<br><small>{escape(record.id)} · {record.split} · "
        f"{record.seconds or 0:.2f} s<br>{link}</small></div></div>"
    )


def _inline(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
