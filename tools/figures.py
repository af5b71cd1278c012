"""Keep the README's numbers true: they come from docs/figures.json, and that from measurements.

    python tools/figures.py --measure    run the benchmark, write docs/figures.json and the README
    python tools/figures.py              write the README's numbers from docs/figures.json again

Measure on a quiet machine. What has not been measured is left out of the README, not guessed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from diffsound.files import atomic_write
from diffsound.model.bundle import resolve
from diffsound.model.checks import describe

ROOT = Path(__file__).parents[1]
README, FIGURES = ROOT / "README.md", ROOT / "docs" / "figures.json"
BENCHMARK = ROOT / "benchmarks" / "text_to_wav.py"
EVALUATION = "evaluation.json"  # in the bundle's folder: a report of `diffsound evaluate recognise`
START, END = "<!-- figures:start -->", "<!-- figures:end -->"

Figures = dict[str, Any]


def measure() -> Figures:
    """Speed and memory of the bundled model on this machine; its size and recognition."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--json"], check=True, stdout=subprocess.PIPE, text=True
    )
    benchmark = json.loads(done.stdout)
    return {
        "machine": f"{os.cpu_count()} cores, {_processor()}",
        "sound_seconds": benchmark["sound_seconds"],
        "steps": benchmark["steps"],
        "best_of": benchmark["best_of"],
        "text_to_wav_seconds": round(benchmark["seconds"]["text to WAV, warm"], 2),
        "cold_start_seconds": round(benchmark["seconds"]["text to WAV, cold"], 2),
        "memory_mb": round(benchmark["peak_mb"]["cold process"]),
        "bundle_mb": round(describe(None)["bytes"] / 1e6, 1),
        "recognition": _recognition(resolve(None) / EVALUATION),
    }


def table(figures: Figures) -> str:
    """The figures as a Markdown table."""
    what = "{sound_seconds:g} s of sound".format(**figures)
    rows = {
        f"{what} from text, model loaded": _unit(figures["text_to_wav_seconds"], "s"),
        f"{what} from a cold start": _unit(figures["cold_start_seconds"], "s"),
        "memory, at most": _unit(figures["memory_mb"], "MB"),
        "model on disk": _unit(figures["bundle_mb"], "MB"),
        "generated sounds a classifier recognises (real ones)": _shares(figures["recognition"]),
    }
    lines = ["| | |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in rows.items() if value is not None]
    if figures["text_to_wav_seconds"] is not None:
        lines += [
            "",
            "At {steps} steps, the best of {best_of} draws, on {machine}.".format(**figures),
        ]
    return "\n".join(lines)


def with_figures(text: str, figures: Figures) -> str:
    """The README's text with the table between its marks."""
    marked = re.compile(f"(?<={re.escape(START)}\n).*?(?={re.escape(END)})", re.DOTALL)
    if not marked.search(text):
        raise SystemExit(f"the README has no {START} … {END}")
    return marked.sub(lambda _: f"{table(figures)}\n", text)


def _recognition(report: Path) -> dict[str, float] | None:
    """The shares of generated and real sounds that the classifier names rightly, if measured."""
    if not report.is_file():
        return None
    rows = json.loads(report.read_text(encoding="utf-8"))["rows"]
    shares = {name: rows[name]["scores"]["top-1"]["value"] for name in ("generated", "real")}
    return {name: round(share, 3) for name, share in shares.items()}


def _unit(value: float | None, unit: str) -> str | None:
    return None if value is None else f"{value:g} {unit}"


def _shares(recognition: dict[str, float] | None) -> str | None:
    if recognition is None:
        return None
    return f"{100 * recognition['generated']:.0f} % ({100 * recognition['real']:.0f} %)"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", lines, re.MULTILINE)
    return found[1] if found else platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="measure first; takes a minute")
    if parser.parse_args().measure:
        with atomic_write(FIGURES) as temporary:
            temporary.write_text(json.dumps(measure(), indent=2) + "\n", encoding="utf-8")
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    text = with_figures(README.read_text(encoding="utf-8"), figures)
    with atomic_write(README) as temporary:
        temporary.write_text(text, encoding="utf-8")
    print(table(figures))


if __name__ == "__main__":
    main()
