"""`diffsound evaluate`: the paper's metrics, tables, figures and listening test."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

HELP = """Measure a model: metrics, tables, listening test.

\b
Examples:
  diffsound evaluate run my-model --data data/mine --out eval/mine
  diffsound evaluate steps "a dog barks" steps.gif
"""

app = typer.Typer(help=HELP, no_args_is_help=True)

Out = Annotated[Path, typer.Option("--out", help="Folder for what is written.")]
Data = Annotated[Path, typer.Option("--data", help="A folder made by `data prepare`.")]
Judge = Annotated[
    str | None, typer.Option("--classifier", help="A classifier's run; else the bundled one.")
]
Listener = Annotated[
    str | None, typer.Option("--captioner", help="A captioner's run, for caption scores.")
]
CoreNLP = Annotated[
    Path | None,
    typer.Option("--corenlp", help="Folder of the Stanford CoreNLP 3.6.0 jars, for SPICE."),
]
Sampling = Annotated[
    list[str] | None, typer.Option("--set", help="Sampling: --set num_inference_steps=10")
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
    corenlp: CoreNLP = None,
    split: Annotated[str, typer.Option(help="Which clips are the truth.")] = "test",
    clips: Annotated[int | None, typer.Option(help="How many of them; all by default.")] = None,
    samples: Annotated[int, typer.Option(help="Sounds per text.")] = 1,
    seconds: Annotated[float | None, typer.Option(help="Length of every sound.")] = None,
    seed: Seed = 0,
    set_: Sampling = None,
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
        classifier=classifier, captioner=captioner, corenlp=corenlp, device=device,
        progress=_progress,
    )  # fmt: skip
    for row, found in report["rows"].items():
        typer.echo(f"{row}: " + ", ".join(map(_short, found["scores"].values())))
    typer.echo(f"{out / 'report.html'}", err=True)


def _progress(what: str, done: int, of: int) -> None:
    if sys.stderr.isatty():
        typer.echo(f"\r{what}: {done} of {of}", err=True, nl=done == of)


def _short(score: dict[str, Any]) -> str:
    return f"{score['name']} {_figure(score['value'])}"


def _figure(value: float | None) -> str:
    return "not available" if value is None else f"{value:.4g}"


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


@app.command()
def figure(
    out: Annotated[Path, typer.Argument(help="PNG file to write.")],
    run: Runs,
    texts: Annotated[int, typer.Option(help="Rows of the picture.")] = 4,
    seed: Seed = 0,
) -> None:
    """Draw figure 6: prompts, real clips and the systems' sounds as spectrograms."""
    from diffsound.evaluation.figures import figure_of_runs

    typer.echo(str(figure_of_runs(out, _named(run), texts=texts, seed=seed)))


@app.command()
def steps(
    prompt: Annotated[str, typer.Argument(help="What to hear.")],
    out: Annotated[Path, typer.Argument(help=".gif or .png file to write.")],
    bundle: Annotated[str | None, typer.Option("--bundle", "-b", help="Folder or hub id.")] = None,
    frames: Annotated[int, typer.Option(help="Steps that are shown.")] = 8,
    duration: Annotated[float | None, typer.Option(help="Seconds.")] = None,
    num_inference_steps: Annotated[int | None, typer.Option("--steps", help="Steps made.")] = None,
    seed: Seed = 0,
) -> None:
    """Draw a sound as it forms, step by step."""
    from diffsound.cli.options import given
    from diffsound.evaluation.figures import denoising
    from diffsound.pipeline import TextToSound

    made = denoising(
        out, TextToSound.from_pretrained(bundle), prompt, frames=frames, seed=seed,
        duration=duration, **given(num_inference_steps=num_inference_steps),
    )  # fmt: skip
    typer.echo(str(made))


Best = Annotated[
    str | None, typer.Option("--captioner", help="Run that chooses candidates; else the bundle's.")
]


@app.command()
def recognise(
    bundle: Annotated[str, typer.Argument(help="Bundle folder or hub id.")],
    data: Data,
    out: Out,
    classifier: Judge = None,
    captioner: Best = None,
    prompts: Annotated[
        Path | None, typer.Option(help="YAML of sentences by class; ours for ESC-50's by default.")
    ] = None,
    split: Annotated[str, typer.Option(help="Real clips to compare with.")] = "valid",
    per_class: Annotated[int, typer.Option(help="Sentences of each class.")] = 10,
    clips: Annotated[int | None, typer.Option(help="Real clips of each class; else all.")] = None,
    seconds: Annotated[float, typer.Option(help="Length of every sound.")] = 5.0,
    candidates: Annotated[int, typer.Option(help="Sounds made for each sentence.")] = 1,
    keep: Annotated[int, typer.Option(help="How many of them count: the best.")] = 1,
    seed: Seed = 0,
    set_: Sampling = None,
    device: Device = "cpu",
) -> None:
    """Is what was asked for recognised? Names generated and real clips, class by class.

    Interrupted, it goes on where it stopped when run again.

    \b
    Example:
      diffsound evaluate recognise my-bundle --data data/corpus --out recognised
    """
    from diffsound.config import apply_overrides
    from diffsound.evaluation.recognise import parse_settings
    from diffsound.evaluation.recognise import recognise as run_recognise

    settings = parse_settings(
        {
            "split": split,
            "per_class": per_class,
            "clips": clips,
            "seconds": seconds,
            "seed": seed,
            "candidates": candidates,
            "keep": keep,
            "sampling": apply_overrides({}, set_ or []),
        }
    )
    report = run_recognise(
        bundle, data, out, settings,
        classifier=classifier, captioner=captioner, prompts=prompts, device=device,
        progress=_progress,
    )  # fmt: skip
    for row, found in report["rows"].items():
        typer.echo(f"{row}: " + ", ".join(map(_short, found["scores"].values())))
    ratios = report["ratios"]["generated"].items()
    typer.echo("generated / real: " + ", ".join(f"{name} {_figure(r)}" for name, r in ratios))
    typer.echo(f"{out / 'report.html'}", err=True)


@app.command()
def follow(
    bundle: Annotated[str, typer.Argument(help="Bundle folder or hub id.")],
    data: Data,
    out: Out,
    classifier: Judge = None,
    split: Annotated[str, typer.Option(help="Real clips for true scenes.")] = "valid",
    prompts: Annotated[int, typer.Option(help="Texts of two events.")] = 100,
    distant: Annotated[int, typer.Option(help="Texts asked for near and far.")] = 25,
    seconds: Annotated[float, typer.Option(help="Length of every sound.")] = 8.0,
    window: Annotated[float, typer.Option(help="Seconds the classifier hears at once.")] = 2.0,
    top: Annotated[int, typer.Option(help="An event among so many likeliest is heard.")] = 3,
    seed: Seed = 0,
    set_: Sampling = None,
    device: Device = "cpu",
) -> None:
    """Are two events, their order and their distance heard? Beside true scenes and chance.

    Interrupted, it goes on where it stopped when run again.

    \b
    Example:
      diffsound evaluate follow my-bundle --data data/corpus --out followed
    """
    from diffsound.config import apply_overrides
    from diffsound.evaluation.follow import follow as run_follow
    from diffsound.evaluation.follow import parse_settings

    settings = parse_settings(
        {
            "split": split,
            "prompts": prompts,
            "distant": distant,
            "seconds": seconds,
            "window": window,
            "top": top,
            "seed": seed,
            "sampling": apply_overrides({}, set_ or []),
        }
    )
    report = run_follow(
        bundle, data, out, settings, classifier=classifier, device=device, progress=_progress
    )
    for row, found in report["rows"].items():
        typer.echo(f"{row}: " + ", ".join(map(_short, found["scores"].values())))
    for row, found in report["distance"].items():
        level, tilt = (found[name]["mean"] for name in ("level_db", "tilt_db_per_octave"))
        typer.echo(f"{row}, far: level {_figure(level)} dB, tilt {_figure(tilt)} dB/octave")
    typer.echo(f"{out / 'report.html'}", err=True)


@app.command()
def study(
    data: Data,
    out: Out,
    classifier: Judge = None,
    split: Annotated[str, typer.Option(help="Clips that are disturbed.")] = "test",
    clips: Annotated[int | None, typer.Option(help="How many of them; all by default.")] = None,
    seconds: Annotated[float, typer.Option(help="Every clip is cut or padded to this.")] = 5.0,
    seed: Seed = 0,
) -> None:
    """Draw figure 2: do FID and KL rise when clips are disturbed more and more?"""
    from diffsound.bundle import resolve
    from diffsound.data.shards import PreparedData
    from diffsound.evaluation.classifier import load_classifier
    from diffsound.evaluation.clips import clips_of_data
    from diffsound.evaluation.feature_cache import FeatureCache
    from diffsound.evaluation.metric_study import study as run_study
    from diffsound.evaluation.metric_study import write_study
    from diffsound.evaluation.sets import choose_examples, make_folder
    from diffsound.evaluation.setup import judge_folder

    judge = load_classifier(judge_folder(resolve(None), classifier, "classifier"))
    prepared = PreparedData.open(data)
    examples, _ = choose_examples(prepared, split, clips, seed)
    chosen = clips_of_data(prepared, [prepared.position(example.id) for example in examples])
    others = clips_of_data(prepared, prepared.where(split="train")) or chosen
    with FeatureCache(make_folder(out) / "features.sqlite") as cache:
        result = run_study(judge, chosen, others, seconds=seconds, cache=cache, seed=seed)
    for path in write_study(out, result, judge, chosen[0], others, seconds=seconds, seed=seed):
        typer.echo(str(path))


@app.command()
def table(
    number: Annotated[int, typer.Argument(help="2 to 7.")],
    config: Annotated[Path, typer.Option("--config", help="The table's YAML file.")],
    out: Out,
    corenlp: CoreNLP = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting: --set clips=100")
    ] = None,
) -> None:
    """Repeat a table of the paper with our bundles; rows that are finished are not made again."""
    from diffsound.config import load_config
    from diffsound.evaluation.tables import TableConfig, make_table

    chosen = load_config(TableConfig, config, set_ or [])
    if corenlp is not None:
        chosen = chosen.model_copy(update={"corenlp": str(corenlp)})
    for path in make_table(number, chosen, out, _progress):
        typer.echo(str(path))
