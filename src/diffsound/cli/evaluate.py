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


listen = typer.Typer(help="A listening test: build the page, serve it, read the result.")
app.add_typer(listen, name="listen", no_args_is_help=True)

TestFolder = Annotated[Path, typer.Argument(help="The test's folder.")]
Runs = Annotated[
    list[str], typer.Option("--run", help="NAME=DIR, a folder of `evaluate run`; repeatable.")
]


@listen.command()
def build(
    folder: TestFolder,
    run: Runs,
    texts: Annotated[int, typer.Option(help="Sentences in the test.")] = 15,
    takes: Annotated[int, typer.Option(help="Sounds of each system per sentence.")] = 1,
    seed: Seed = 0,
) -> None:
    """Make a blinded page of real clips and the systems' sounds.

    \b
    Example:
      diffsound evaluate listen build mos --run diffsound=eval/diffsound --run ar=eval/ar
    """
    from diffsound.evaluation.listening import build_test

    typer.echo(str(build_test(folder, _named(run), texts=texts, takes=takes, seed=seed)))


@listen.command()
def serve(
    folder: TestFolder,
    host: Annotated[str, typer.Option(help="Address; 0.0.0.0 lets others in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 picks a free one.")] = 8770,
) -> None:
    """Serve the page and keep the ratings, until Ctrl-C."""
    from diffsound.evaluation.listening_server import ListeningServer

    with ListeningServer(folder, host, port) as server:
        typer.echo(f"listening test on {server.url}", err=True)
        server.serve_forever()


@listen.command("report")
def listen_report(folder: TestFolder) -> None:
    """Means, 95 % intervals and agreement; also written to the folder."""
    from diffsound.evaluation.listening_report import listening_report, report_markdown

    typer.echo(report_markdown(listening_report(folder)))


def _named(values: list[str]) -> dict[str, str]:
    from diffsound.errors import InputError

    named = dict(value.partition("=")[::2] for value in values)
    wrong = next((value for value in values if not all(value.partition("=")[::2])), None)
    if wrong is not None or len(named) < len(values):
        raise InputError(f"runs are given as NAME=DIR, each name once, not {wrong or values}")
    return named
