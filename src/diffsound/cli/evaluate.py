"""`diffsound evaluate`: the paper's metrics, tables, figures and listening test."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from diffsound.cli import options

HELP = """Measure a model: metrics, recognition, tables, listening test.

\b
Examples:
  diffsound evaluate run my-model --data data/mine --out eval/mine
  diffsound evaluate recognise my-model --data data/corpus --out eval/recognised
"""

app = typer.Typer(help=HELP, no_args_is_help=True)

BundleName = Annotated[str, typer.Argument(help="Bundle folder or hub id.")]
Out = Annotated[Path, typer.Option("--out", help="Folder for the results.")]
Data = Annotated[Path, typer.Option("--data", help="Folder made by `data prepare`.")]
Judge = Annotated[
    str | None, typer.Option("--classifier", help="Classifier run; by default the bundled one.")
]
CoreNLP = Annotated[
    Path | None,
    typer.Option("--corenlp", help="Folder of the Stanford CoreNLP 3.6.0 jars, for SPICE."),
]
Sampling = Annotated[
    list[str] | None,
    typer.Option("--set", help="Sampling setting, e.g. --set num_inference_steps=10; repeatable."),
]
Seed = Annotated[int, typer.Option(help="The same seed gives the same clips and sounds.")]
EarPlug = Annotated[
    Path | None,
    typer.Option("--ear", help="Outside ear that listens as well: a .py, .onnx or .tflite file."),
]
EarClips = Annotated[
    Path | None,
    typer.Option(
        "--ear-clips",
        help="Real clips for the ear's probe: an .npz of embeddings, a prepared folder or a data "
        "source.",
    ),
]
EarFit = Annotated[
    str, typer.Option("--ear-fit", help="Folds or splits the probe is fitted on, e.g. 1,2,3.")
]
EarReference = Annotated[
    str, typer.Option("--ear-reference", help="Folds or splits distances are measured to, e.g. 4.")
]


@app.command()
def run(
    bundle: BundleName,
    data: Data,
    out: Out,
    classifier: Judge = None,
    captioner: Annotated[
        str | None, typer.Option("--captioner", help="Captioner run, for caption scores.")
    ] = None,
    corenlp: CoreNLP = None,
    caption_metrics: Annotated[
        str | None,
        typer.Option(help="Caption scores to compute, e.g. cider,meteor,bleu_4."),
    ] = None,
    split: Annotated[str, typer.Option(help="Split of the real clips.")] = "test",
    clips: Annotated[int | None, typer.Option(help="Number of clips; all by default.")] = None,
    samples: Annotated[int, typer.Option(help="Sounds per text.")] = 1,
    seconds: Annotated[float | None, typer.Option(help="Length of every sound.")] = None,
    seed: Seed = 0,
    set_: Sampling = None,
    copies: Annotated[bool, typer.Option(help="Search for copies of training clips.")] = True,
    allow_few: Annotated[
        bool, typer.Option("--allow-few", help="Compute FID even with too few clips.")
    ] = False,
    device: options.Device = "cpu",
) -> None:
    """Score a bundle's sounds, and what its codec and vocoder cost; writes JSON and HTML.

    If interrupted, run it again to continue.
    """
    from diffsound.config import apply_overrides, parse_config
    from diffsound.evaluation.run import EvaluationSettings, evaluate

    values: dict[str, Any] = {
        "split": split, "clips": clips, "samples": samples, "seconds": seconds, "seed": seed,
        "sampling": apply_overrides({}, set_ or []), "copies": copies, "allow_few": allow_few,
    }  # fmt: skip
    if caption_metrics is not None:
        values["caption_metrics"] = _listed(caption_metrics)
    report = evaluate(
        bundle, data, out, parse_config(EvaluationSettings, values, source="evaluate"),
        classifier=classifier, captioner=captioner, corenlp=corenlp, device=device,
        progress=_progress,
    )  # fmt: skip
    _show_rows(report["rows"])
    typer.echo(f"{out / 'report.html'}", err=True)


def _progress(what: str, done: int, of: int) -> None:
    if sys.stderr.isatty():
        typer.echo(f"\r{what}: {done} of {of}", err=True, nl=done == of)


def _show_rows(rows: dict[str, Any], prefix: str = "") -> None:
    for row, found in rows.items():
        scores = (f"{s['name']} {_figure(s['value'])}" for s in found["scores"].values())
        typer.echo(f"{prefix}{row}: " + ", ".join(scores))


def _figure(value: float | None) -> str:
    return "not available" if value is None else f"{value:.4g}"


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


listen = typer.Typer(help="A listening test: build the page, serve it, read the results.")
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
    """Build a blind test page of real clips and the systems' sounds.

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
    """Serve the page and store the ratings, until Ctrl-C."""
    from diffsound.evaluation.listening import ListeningServer

    with ListeningServer(folder, host, port) as server:
        typer.echo(f"listening test on {server.url}", err=True)
        server.serve_forever()


@listen.command("report")
def listen_report(folder: TestFolder) -> None:
    """Show means, 95 % intervals and agreement, and write them to the folder."""
    from diffsound.evaluation.listening import listening_report, report_markdown

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
    from diffsound.evaluation.pages import figure_of_runs

    typer.echo(str(figure_of_runs(out, _named(run), texts=texts, seed=seed)))


@app.command()
def steps(
    prompt: Annotated[str, typer.Argument(help="What to hear.")],
    out: Annotated[Path, typer.Argument(help=".gif or .png file to write.")],
    bundle: Annotated[str | None, typer.Option("--bundle", "-b", help="Folder or hub id.")] = None,
    frames: Annotated[int, typer.Option(help="Steps to show.")] = 8,
    duration: Annotated[float | None, typer.Option(help="Seconds.")] = None,
    num_inference_steps: Annotated[
        int | None, typer.Option("--steps", help="Steps to run.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Draw a sound as it forms, step by step."""
    from diffsound.evaluation.pages import denoising
    from diffsound.generation.pipeline import TextToSound

    made = denoising(
        out, TextToSound.from_pretrained(bundle), prompt, frames=frames, seed=seed,
        duration=duration, **options.given(num_inference_steps=num_inference_steps),
    )  # fmt: skip
    typer.echo(str(made))


@app.command()
def recognise(
    bundle: BundleName,
    data: Data,
    out: Out,
    classifier: Judge = None,
    captioner: Annotated[
        str | None,
        typer.Option(
            "--captioner", help="Captioner run that chooses candidates; by default the bundle's."
        ),
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="YAML of sentences by class; by default ours for ESC-50.")
    ] = None,
    split: Annotated[str, typer.Option(help="Split of the real clips.")] = "valid",
    per_class: Annotated[int, typer.Option(help="Sentences of each class.")] = 10,
    clips: Annotated[
        int | None, typer.Option(help="Real clips of each class; all by default.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Length of every sound.")] = 5.0,
    candidates: Annotated[int, typer.Option(help="Sounds generated for each sentence.")] = 1,
    keep: Annotated[int, typer.Option(help="Number of candidates to keep, the best ones.")] = 1,
    ear: EarPlug = None,
    ear_clips: EarClips = None,
    ear_fit: EarFit = "",
    ear_reference: EarReference = "",
    seed: Seed = 0,
    set_: Sampling = None,
    device: options.Device = "cpu",
) -> None:
    """Are the requested sounds recognised? Classifies generated and real clips, class by class.

    If interrupted, run it again to continue.

    \b
    Examples:
      diffsound evaluate recognise my-bundle --data data/corpus --out recognised
      diffsound evaluate recognise my-bundle --data data/corpus --out recognised \\
          --ear yamnet.tflite --ear-clips esc50.npz --ear-fit 1,2,3 --ear-reference 4
    """
    from diffsound.config import apply_overrides, parse_config
    from diffsound.errors import InputError
    from diffsound.evaluation.recognise import EarSettings, RecogniseSettings
    from diffsound.evaluation.recognise import recognise as run_recognise

    values = {
        "split": split, "per_class": per_class, "clips": clips, "seconds": seconds, "seed": seed,
        "candidates": candidates, "keep": keep, "sampling": apply_overrides({}, set_ or []),
    }  # fmt: skip
    settings = parse_config(RecogniseSettings, values, source="recognise")
    outside = None
    if ear is not None:
        outside = EarSettings(
            plug=str(ear),
            clips=None if ear_clips is None else str(ear_clips),
            fit=_listed(ear_fit),
            reference=_listed(ear_reference),
        )
    elif ear_clips or ear_fit or ear_reference:
        raise InputError("--ear-clips, --ear-fit and --ear-reference need --ear")
    report = run_recognise(
        bundle, data, out, settings,
        classifier=classifier, captioner=captioner, prompts=prompts, ear=outside, device=device,
        progress=_progress,
    )  # fmt: skip
    _show_rows(report["rows"])
    ratios = report["ratios"]["generated"].items()
    typer.echo("generated / real: " + ", ".join(f"{name} {_figure(r)}" for name, r in ratios))
    if outside is not None:
        _show_rows(report["ear"]["rows"], "by ear, ")
    typer.echo(f"{out / 'report.html'}", err=True)


@app.command()
def hear(
    manifest: Annotated[
        Path, typer.Argument(help="CSV with the columns file (relative to it) and class.")
    ],
    ear: Annotated[Path, typer.Option("--ear", help="A .py, .onnx or .tflite file.")],
    ear_clips: Annotated[
        Path,
        typer.Option(
            "--ear-clips",
            help="Real clips for the probe: an .npz of embeddings, a prepared folder or a data "
            "source.",
        ),
    ],
    ear_fit: EarFit = "",
    ear_reference: EarReference = "",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all figures to this file.")
    ] = None,
) -> None:
    """Let an outside ear classify any sounds of known classes; shows the dozen worst classes.

    \b
    Example:
      diffsound evaluate hear sounds.csv --ear yamnet.tflite --ear-clips esc50.npz
    """
    from diffsound.evaluation.probe import hear_manifest
    from diffsound.evaluation.sets import write_json

    report = hear_manifest(
        manifest, ear, ear_clips,
        fit=_listed(ear_fit), reference=_listed(ear_reference), progress=_progress,
    )  # fmt: skip
    _show_rows(report["rows"])
    for entry in report["classes"][:12]:
        heard = ", ".join(f"{name} {count}" for name, count in entry["heard_as"].items())
        typer.echo(f"  {entry['label']}: {entry['right']} of {entry['clips']}, heard as {heard}")
    if json_file is not None:
        write_json(json_file, report)


@app.command()
def follow(
    bundle: BundleName,
    data: Data,
    out: Out,
    classifier: Judge = None,
    split: Annotated[str, typer.Option(help="Split of the real clips for true scenes.")] = "valid",
    prompts: Annotated[int, typer.Option(help="Texts of two events.")] = 100,
    distant: Annotated[int, typer.Option(help="Texts to generate near and far.")] = 25,
    seconds: Annotated[float, typer.Option(help="Length of every sound.")] = 8.0,
    window: Annotated[float, typer.Option(help="Seconds the classifier hears at once.")] = 2.0,
    top: Annotated[
        int, typer.Option(help="An event counts as heard among this many likeliest classes.")
    ] = 3,
    seed: Seed = 0,
    set_: Sampling = None,
    device: options.Device = "cpu",
) -> None:
    """Are two events, their order, number and distance audible? Compared with scenes and chance.

    If interrupted, run it again to continue.

    \b
    Example:
      diffsound evaluate follow my-bundle --data data/corpus --out followed
    """
    from diffsound.config import apply_overrides, parse_config
    from diffsound.evaluation.follow import FollowSettings
    from diffsound.evaluation.follow import follow as run_follow

    values = {
        "split": split, "prompts": prompts, "distant": distant, "seconds": seconds,
        "window": window, "top": top, "seed": seed, "sampling": apply_overrides({}, set_ or []),
    }  # fmt: skip
    settings = parse_config(FollowSettings, values, source="follow")
    report = run_follow(
        bundle, data, out, settings, classifier=classifier, device=device, progress=_progress
    )
    _show_rows(report["rows"])
    for row, found in report["distance"].items():
        level, tilt = (found[name]["mean"] for name in ("level_db", "tilt_db_per_octave"))
        typer.echo(f"{row}, far: level {_figure(level)} dB, tilt {_figure(tilt)} dB/octave")
    for name in ("counted", "single"):
        score = report["numbers"][name]
        typer.echo(f"{name} prompts: {score['name']} {_figure(score['value'])}")
    typer.echo(f"{out / 'report.html'}", err=True)


@app.command()
def loops(
    bundle: Annotated[str | None, typer.Argument(help="Bundle folder or hub id.")] = None,
    prompt: Annotated[list[str] | None, typer.Option(help="Instead of eight steady ones.")] = None,
    seconds: Annotated[float, typer.Option(help="Length of every loop.")] = 4.0,
    seed: Seed = 1,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the figures.")] = None,
    device: options.Device = "cpu",
) -> None:
    """Is the seam of a loop heard? Steps there as a share of those elsewhere in the same sound.

    1 is as large as all but a hundredth of the steps elsewhere; plain: without --loop.
    """
    from diffsound.evaluation.loops import PROMPTS, compare_loops
    from diffsound.evaluation.sets import write_json
    from diffsound.generation.pipeline import TextToSound

    pipeline = TextToSound.from_pretrained(bundle, device=device)
    rows = compare_loops(pipeline, prompt or PROMPTS, seconds, seed, _progress)
    typer.echo(" " * 24 + "".join(f"{name:>10}" for name in [*rows[0]][1:]))
    for name, *shares in (row.values() for row in rows):
        typer.echo(f"{name:24.24}" + "".join(f"{share:10.2f}" for share in shares))
    if json_file is not None:
        write_json(json_file, rows)


@app.command()
def study(
    data: Data,
    out: Out,
    classifier: Judge = None,
    split: Annotated[str, typer.Option(help="Split of the clips to disturb.")] = "test",
    clips: Annotated[int | None, typer.Option(help="Number of clips; all by default.")] = None,
    seconds: Annotated[float, typer.Option(help="Every clip is cut or padded to this.")] = 5.0,
    seed: Seed = 0,
) -> None:
    """Draw figure 2: do FID and KL rise as real clips are disturbed more?"""
    from diffsound.evaluation.compare import study_data

    for path in study_data(
        data, out, classifier=classifier, split=split, clips=clips, seconds=seconds, seed=seed
    ):
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
    """Repeat a table of the paper with your bundles; finished rows are kept."""
    from diffsound.config import load_config
    from diffsound.evaluation.tables import TableConfig, make_table

    chosen = load_config(TableConfig, config, set_ or [])
    if corenlp is not None:
        chosen = chosen.model_copy(update={"corenlp": str(corenlp)})
    for path in make_table(number, chosen, out, _progress):
        typer.echo(str(path))
