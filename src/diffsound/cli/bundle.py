"""`diffsound bundle`: build, inspect, verify, export and import models; `bench`: time one."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffsound.cli import options
from diffsound.cli.main import fail

if TYPE_CHECKING:
    from diffsound.model.bundle import Bundle

HELP = """Build, inspect, verify and import models.

\b
Examples:
  diffsound bundle inspect
  diffsound bundle verify my-model
  diffsound bundle export --onnx --out with-onnx
"""

app = typer.Typer(help=HELP, no_args_is_help=True)

BundleArgument = Annotated[
    str | None, typer.Argument(help="Bundle folder or hub id; the bundled model by default.")
]


@app.command()
def inspect(
    bundle: BundleArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a bundle is made of."""
    from diffsound.model.checks import describe

    description = describe(bundle)
    if as_json:
        typer.echo(json.dumps(description, indent=2))
        return
    for key, value in description.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        typer.echo(f"{key:>15}  {text}")


@app.command()
def verify(
    bundle: BundleArgument = None,
    signers: Annotated[
        Path | None,
        typer.Option(help="Allowed signers (a name and a public key a line): who signed it?"),
    ] = None,
) -> None:
    """Check every file's checksum, that the stages fit together, and who signed them.

    \b
    Examples:
      diffsound bundle verify my-model
      diffsound bundle verify my-model --signers allowed_signers
    """
    from diffsound.model.bundle import resolve
    from diffsound.model.checks import check_signature
    from diffsound.model.checks import verify as check

    folder = resolve(bundle)
    signed = "" if signers is None else f", signed by {check_signature(folder, signers)}"
    problems = check(folder)
    if problems:
        fail(f"{folder}: {'; '.join(problems)}")
    typer.echo(f"{folder}: good{signed}")


@app.command()
def sign(
    bundle: Annotated[Path, typer.Argument(help="Bundle folder.")],
    key: Annotated[Path, typer.Option(help="SSH key, such as ~/.ssh/id_ed25519.")],
) -> None:
    """Sign a bundle with an SSH key, so that others can tell who made it.

    \b
    Example:
      diffsound bundle sign my-model --key ~/.ssh/id_ed25519
    """
    from diffsound.model.checks import sign as run

    typer.echo(f"{run(bundle, key.expanduser())}: signed")


@app.command()
def build(
    out: Annotated[Path, typer.Argument(help="Folder of the new bundle.")],
    codec: Annotated[Path, typer.Option(help="Run of the codec (or a bundle, for its codec).")],
    decoder: Annotated[
        Path, typer.Option(help="Run of the decoder (or a bundle, for its decoder).")
    ],
    vocoder: Annotated[
        str, typer.Option(help="Run of the vocoder, a bundle, or griffin_lim.")
    ] = "griffin_lim",
    name: Annotated[
        str | None, typer.Option(help="Name of the bundle; the folder's if missing.")
    ] = None,
    card: Annotated[Path | None, typer.Option(help="Model card, a Markdown file.")] = None,
    default: Annotated[
        list[str] | None,
        typer.Option(help="Default of a setting, key=value: --default guidance_scale=3"),
    ] = None,
    captioner: Annotated[
        Path | None, typer.Option(help="Run of a captioner, which describes sounds.")
    ] = None,
    classifier: Annotated[
        Path | None, typer.Option(help="Run of a classifier, which scores sounds.")
    ] = None,
    matcher: Annotated[
        Path | None, typer.Option(help="Run of a matcher, which chooses among takes.")
    ] = None,
    coverage: Annotated[
        Path | None,
        typer.Option(help="The decoder's training data; sounds then say how well it knows them."),
    ] = None,
    half: Annotated[bool, typer.Option(help="Store float16.")] = True,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", "-f", help="Replace the bundle in that folder.")
    ] = False,
) -> None:
    """Join finished training runs into a bundle."""
    from diffsound.judges import JUDGES
    from diffsound.training.assemble import build as run

    runs = zip(JUDGES, (captioner, classifier, matcher), strict=True)
    bundle = run(
        out,
        codec,
        decoder,
        vocoder,
        name=name,
        card=card,
        defaults=default or [],
        judges={kind: judge for kind, judge in runs if judge is not None},
        coverage=coverage,
        half=half,
        overwrite=overwrite,
    )
    _show_size(out, bundle)


@app.command()
def export(
    bundle: BundleArgument = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Write ONNX files.")] = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="Quantise the decoder's dense layers to int8.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for a copy of the bundle with the export; default: the bundle."),
    ] = None,
) -> None:
    """Write decoder, codec decoder and vocoder for other runtimes, into BUNDLE/onnx.

    \b
    Examples:
      diffsound bundle export my-bundle --onnx
      diffsound bundle export --onnx --int8 --out fast && diffsound "rain" -b fast --backend onnx
    """
    from diffsound.model.bundle import Bundle, resolve
    from diffsound.model.checks import copy_bundle

    if not onnx:
        fail("choose a format to export to: --onnx")
    from diffsound.model.onnx_export import export_onnx, require_onnx

    require_onnx()
    source = resolve(bundle)
    if out is not None:
        _check_free(out)
        copy_bundle(source, out)
        source = out
    written = export_onnx(Bundle.from_pretrained(source), source, int8=int8)
    sizes = {path.stem: path.stat().st_size for path in sorted(written.glob("*.onnx"))}
    typer.echo(f"{written}: " + ", ".join(f"{name} {n / 1e6:.1f} MB" for name, n in sizes.items()))


@app.command("import")
def import_(
    out: Annotated[Path, typer.Argument(help="Folder of the new bundle.")],
    decoder: Annotated[Path, typer.Option(help="Published Diffsound or AR checkpoint.")],
    codec: Annotated[
        Path | None,
        typer.Option(help="Published VQ-VAE; the one in the decoder's file if missing."),
    ] = None,
    vocoder: Annotated[
        Path | None, typer.Option(help="Published MelGAN; Griffin-Lim if missing.")
    ] = None,
    text_encoder: Annotated[str | None, typer.Option(help="CLIP folder or hub id.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the bundle; the folder's if missing.")
    ] = None,
    heads: Annotated[int, typer.Option(help="Attention heads of the decoder.")] = 16,
    rows: Annotated[int, typer.Option(help="Rows of the token grid (AR only).")] = 5,
    ema: Annotated[
        bool | None,
        typer.Option(help="Use the averaged or the raw weights; averaged by default, if present."),
    ] = None,
    truncation: Annotated[float, typer.Option(help="Probability mass kept when sampling.")] = 0.85,
    half: Annotated[bool, typer.Option("--half", help="Store float16.")] = False,
) -> None:
    """Make a bundle from published checkpoints (Diffsound or AR, VQ-VAE, MelGAN)."""
    import torch

    from diffsound.model.published import import_published

    _check_free(out)
    bundle = import_published(
        decoder,
        codec=codec,
        vocoder=vocoder,
        text_encoder=text_encoder,
        name=name or out.name,
        heads=heads,
        rows=rows,
        ema=ema,
        truncation=truncation,
    )
    bundle.save_pretrained(out, torch.float16 if half else torch.float32)
    _show_size(out, bundle)


def _check_free(out: Path) -> None:
    if (out / "config.json").exists():
        fail(f"{out} already holds a bundle; choose another folder")


def _show_size(out: Path, bundle: Bundle) -> None:
    counts = ", ".join(f"{stage} {n / 1e6:.1f} M" for stage, n in bundle.parameters().items())
    typer.echo(f"{out}: {counts} parameters")


@options.spread
def bench(
    duration: Annotated[float, typer.Option("--duration", "-d", help="Seconds of sound.")] = 10.0,
    repeats: Annotated[int, typer.Option(help="Number of runs; their median is shown.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    *,
    model: options.ModelOptions,
) -> None:
    """Time every stage of a generation on this machine.

    \b
    Examples:
      diffsound bench
      diffsound bench --duration 2 --repeats 5 --json
      diffsound bench -b my-bundle --backend onnx
    """
    from diffsound.generation.bench import measure

    times = measure(
        model.bundle,
        duration=duration,
        repeats=repeats,
        device=model.device,
        **options.given(backend=model.backend),
    )
    speed = times.faster_than_real_time
    if as_json:
        typer.echo(json.dumps(asdict(times) | {"faster_than_real_time": speed}))
        return
    typer.echo(
        f"{times.duration:g} s of sound, {times.steps} steps, {times.threads} threads, "
        f"{times.backend}"
    )
    for name, seconds in times.stages.items():
        share = "" if name.startswith("load") else f"{100 * seconds / times.total:6.1f} %"
        typer.echo(f"{name:>18}  {1000 * seconds:9.1f} ms {share}")
    typer.echo(f"{'text to WAV':>18}  {1000 * times.total:9.1f} ms  ({speed:.1f}x real time)")
