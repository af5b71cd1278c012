"""`diffsound evaluate`: the paper's metrics, tables, figures and listening test."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(help="Measure a model: metrics, tables, listening test.", no_args_is_help=True)

Out = Annotated[Path, typer.Option("--out", help="Folder for what is written.")]
Data = Annotated[Path, typer.Option("--data", help="A folder made by `data prepare`.")]
Judge = Annotated[
    str | None, typer.Option("--classifier", help="A classifier's run; else the bundled one.")
]
Listener = Annotated[
    str | None, typer.Option("--captioner", help="A captioner's run, for caption scores.")
]
Seed = Annotated[int, typer.Option(help="Same seed, same clips and sounds.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps …")]


@app.command()
def run(
    bundle: Annotated[str, typer.Argument(help="Bundle folder or hub id.")],
    data: Data,
    out: Out,
    classifier: Judge = None,
    captioner: Listener = None,
    split: Annotated[str, typer.Option(help="Which clips are the truth.")] = "test",
    clips: Annotated[int | None, typer.Option(help="How many of them; all by default.")] = None,
    samples: Annotated[int, typer.Option(help="Sounds per text.")] = 1,
    seconds: Annotated[float | None, typer.Option(help="Length of every sound.")] = None,
    seed: Seed = 0,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Sampling: --set num_inference_steps=10")
    ] = None,
    copies: Annotated[bool, typer.Option(help="Look for copies of training clips.")] = True,
    allow_few: Annotated[
        bool, typer.Option("--allow-few", help="Give FID with too few clips as well.")
    ] = False,
    device: Device = "cpu",
) -> None:
    """Score a bundle: generated sounds, and what codec and vocoder cost; JSON and HTML.

    Interrupted, it goes on where it stopped when run again.
    """
    from diffsound.config import apply_overrides
    from diffsound.evaluation.run import evaluate, parse_settings

    settings = parse_settings(
        {
            "split": split,
            "clips": clips,
            "samples": samples,
            "seconds": seconds,
            "seed": seed,
            "sampling": apply_overrides({}, set_ or []),
            "copies": copies,
            "allow_few": allow_few,
        }
    )
    report = evaluate(
        bundle, data, out, settings,
        classifier=classifier, captioner=captioner, device=device, progress=_progress,
    )  # fmt: skip
    for row, found in report["rows"].items():
        typer.echo(f"{row}: " + ", ".join(map(_short, found["scores"].values())))
    typer.echo(f"{out / 'report.html'}", err=True)


def _progress(what: str, done: int, of: int) -> None:
    if sys.stderr.isatty():
        typer.echo(f"\r{what}: {done} of {of}", err=True, nl=done == of)


def _short(score: dict[str, Any]) -> str:
    value = "not available" if score["value"] is None else f"{score['value']:.4g}"
    return f"{score['name']} {value}"
