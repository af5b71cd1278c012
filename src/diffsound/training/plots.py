"""Curves of a run as a picture."""

from __future__ import annotations

import math
from pathlib import Path

from diffsound.errors import InputError, MissingExtraError
from diffsound.files import atomic_write
from diffsound.training.logs import read_log


def plot_run(run: str | Path, target: str | Path | None = None) -> Path:
    """Draw every logged figure of a run over its steps, training and validation together."""
    run = Path(run)
    curves: dict[str, dict[str, tuple[list[int], list[float]]]] = {}
    for entry in read_log(run):
        if entry["kind"] not in ("train", "valid"):
            continue
        for name, value in entry.items():
            if name in ("kind", "step", "epoch", "seconds") or not isinstance(value, int | float):
                continue
            steps, values = curves.setdefault(name, {}).setdefault(entry["kind"], ([], []))
            steps.append(entry["step"])
            values.append(value)
    if not curves:
        raise InputError(f"{run} has no figures to plot yet (log.jsonl is missing or empty)")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "train") from None
    columns = min(3, len(curves))
    rows = math.ceil(len(curves) / columns)
    figure = Figure(figsize=(4.6 * columns, 2.8 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (name, kinds) in enumerate(sorted(curves.items()), start=1):
        axes = figure.add_subplot(rows, columns, place)
        for kind, (steps, values) in kinds.items():
            axes.plot(steps, values, label=kind, marker="o" if kind == "valid" else None, ms=3)
        axes.set_title(name, fontsize=9)
        axes.grid(alpha=0.3)
        if len(kinds) > 1:
            axes.legend(fontsize=8)
    target = Path(target) if target is not None else run / "curves.png"
    with atomic_write(target) as temporary:
        figure.savefig(temporary, dpi=110)
    return target
