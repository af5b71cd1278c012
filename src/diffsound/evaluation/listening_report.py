"""What a listening test found: table 1 with intervals, and whether listeners agree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diffsound.errors import DataError
from diffsound.evaluation.bootstrap import LEVEL, RESAMPLES, Interval
from diffsound.evaluation.listening import REAL, SCALES, Key, Ratings, read_key, read_ratings
from diffsound.evaluation.sets import write_json
from diffsound.files import atomic_write

MOS = "MOS"
# Table 1: relevance, fidelity, intelligibility, MOS.
PAPER = {
    REAL: (4.307, 4.167, 3.873, 4.116),
    "ar": (2.747, 2.7, 2.913, 2.786),
    "diffsound": (3.833, 3.487, 3.36, 3.56),
}


def listening_report(folder: str | Path, *, seed: int = 0) -> dict[str, Any]:
    """Means, intervals and agreement of a test; writes FOLDER/report.json and report.md."""
    key, (listeners, failed) = read_key(folder), read_ratings(folder)
    listeners = [listener for listener in listeners if listener.ratings]
    if not listeners:
        raise DataError(f"nobody has rated a sound in {folder} yet")
    grades = _grades(key, listeners)
    systems: dict[str, Any] = {}
    for system in key.systems:
        columns = [at for at, clip in enumerate(key.clips.values()) if clip.system == system]
        texts = [clip.text for clip in key.clips.values() if clip.system == system]
        systems[system] = {
            scale: _figure(values[:, columns], texts, seed) for scale, values in grades.items()
        }
    report = {
        "listeners": len(listeners),
        "sounds": len(key.clips),
        "ratings": sum(len(listener.ratings) for listener in listeners),
        "unreadable": failed,
        "interval": f"{LEVEL:.0%}, bootstrap over listeners and texts",
        "agreement": {scale: krippendorff_alpha(values) for scale, values in grades.items()},
        "agreement_measure": "Krippendorff's alpha, interval scale (1 perfect, 0 chance)",
        "loudness_lufs": key.loudness,
        "systems": systems,
    }
    write_json(Path(folder) / "report.json", report)
    with atomic_write(Path(folder) / "report.md") as temporary:
        temporary.write_text(report_markdown(report), encoding="utf-8")
    return report


def krippendorff_alpha(values: np.ndarray) -> float | None:
    """Agreement of ratings [listeners, sounds] (NaN: not rated) on an interval scale.

    1 - observed / expected disagreement, squared differences, over sounds that at least two
    rated. None when no sound was, or when all grades are equal: nothing could be disagreed on.
    """
    counts = (~np.isnan(values)).sum(axis=0)
    shared = values[:, counts >= 2]
    counts = counts[counts >= 2]
    pooled = shared[~np.isnan(shared)]
    if not len(pooled) or np.ptp(pooled) == 0:
        return None
    # Σ over pairs (a - b)² of n values is n Σ a² - (Σ a)², ordered pairs counted twice.
    sums, squares = np.nansum(shared, axis=0), np.nansum(shared**2, axis=0)
    observed = (2 * (counts * squares - sums**2) / (counts - 1)).sum() / len(pooled)
    total = 2 * (len(pooled) * (pooled**2).sum() - pooled.sum() ** 2)
    expected = total / (len(pooled) * (len(pooled) - 1))
    return float(1 - observed / expected)


def crossed_interval(
    values: np.ndarray, texts: Sequence[str], *, resamples: int = RESAMPLES, seed: int = 0
) -> Interval | None:
    """Interval of the mean of ratings [listeners, sounds] when both are drawn anew.

    Ratings of one listener are alike, and so are those of one text; drawing single ratings would
    promise more certainty than there is. None with a single listener and a single text.
    """
    numbers = {text: at for at, text in enumerate(dict.fromkeys(texts))}
    place = np.array([numbers[text] for text in texts])
    listeners = len(values)
    if listeners < 2 and len(numbers) < 2:
        return None
    known = ~np.isnan(values)
    filled = np.where(known, values, 0.0)
    rng = np.random.default_rng(seed)
    means = []
    for _ in range(resamples):
        people = np.bincount(rng.integers(listeners, size=listeners), minlength=listeners)
        drawn = np.bincount(rng.integers(len(numbers), size=len(numbers)), minlength=len(numbers))
        weights = drawn[place]
        heard = people @ known @ weights
        if heard:  # a draw of what nobody rated says nothing
            means.append(people @ filled @ weights / heard)
    return Interval(*np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist())


def report_markdown(report: dict[str, Any]) -> str:
    """Table 1, ours beside the paper's."""
    columns = [*SCALES, MOS]
    lines = [
        f"# Listening test: {report['listeners']} listeners, {report['sounds']} sounds",
        "",
        f"Mean [{report['interval']}]; the paper's figure in parentheses.",
        "",
        "| | " + " | ".join(columns) + " |",
        "| --- |" + " --- |" * len(columns),
    ]
    for system, figures in report["systems"].items():
        paper = dict(zip(columns, PAPER.get(system.lower(), ()), strict=False))
        cells = [_cell(figures[scale], paper.get(scale)) for scale in columns]
        lines.append(f"| {system} | " + " | ".join(cells) + " |")
    agreement = ", ".join(
        f"{scale} {'not defined' if alpha is None else format(alpha, '.2f')}"
        for scale, alpha in report["agreement"].items()
    )
    lines += ["", f"Agreement ({report['agreement_measure']}): {agreement}.", ""]
    if report["unreadable"]:
        lines += [f"Left out: {', '.join(report['unreadable'])}.", ""]
    return "\n".join(lines)


def _grades(key: Key, listeners: Sequence[Ratings]) -> dict[str, np.ndarray]:
    """Ratings [listeners, sounds] of each scale and their mean, NaN where there is none."""
    grades = {
        scale: np.array(
            [
                [
                    getattr(listener.ratings[name], scale) if name in listener.ratings else np.nan
                    for name in key.clips
                ]
                for listener in listeners
            ],
            dtype=np.float64,
        )
        for scale in SCALES
    }
    return grades | {MOS: np.mean(list(grades.values()), axis=0)}


def _figure(values: np.ndarray, texts: Sequence[str], seed: int) -> dict[str, Any]:
    rated = int((~np.isnan(values)).sum())
    if not rated:
        return {"mean": None, "low": None, "high": None, "ratings": 0}
    low, high = crossed_interval(values, texts, seed=seed) or (None, None)
    return {"mean": float(np.nanmean(values)), "low": low, "high": high, "ratings": rated}


def _cell(figure: dict[str, Any], paper: float | None) -> str:
    if figure["mean"] is None:
        return "not rated"
    interval = "" if figure["low"] is None else f" [{figure['low']:.2f}, {figure['high']:.2f}]"
    return f"{figure['mean']:.2f}{interval}" + ("" if paper is None else f" ({paper})")
