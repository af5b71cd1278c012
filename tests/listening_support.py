"""Folders as evaluations leave them, with short sounds."""

from __future__ import annotations

from pathlib import Path

from diffsound.audio.io import write_audio
from diffsound.evaluation.sets import Example, write_examples
from metric_support import RATE, sound


def make_runs(
    folder: Path, first: int = 0, caption: str = "sentence </script>"
) -> dict[str, str | Path]:
    """Two systems' evaluations of three clips."""
    examples = [Example(f"clip-{n}", f"{caption} {n}", ("other",)) for n in range(first, first + 3)]
    runs: dict[str, str | Path] = {}
    for system, shift in (("diff", 100), ("ar", 200)):
        out = folder / system
        for name in ("real", "generated"):
            (out / name).mkdir(parents=True)
        write_examples(out, examples)
        for n, example in enumerate(examples):
            write_audio(out / "real" / f"{example.id}.wav", sound(n), RATE)
            write_audio(out / "generated" / f"{example.id}.0.wav", sound(n + shift), RATE)
        runs[system] = out
    return runs
