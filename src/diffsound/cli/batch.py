"""`diffsound batch`: a file of prompts in, a folder of sounds out."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from diffsound.cli import options
from diffsound.cli.main import INTERRUPTED
from diffsound.cli.output import progress_bar

SOME_FAILED = 1


@options.spread
def command(
    prompts: Annotated[
        Path, typer.Argument(help="JSONL, CSV, or a text file with a prompt on each line.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for sounds and manifest.")],
    file_format: Annotated[str, typer.Option("--format", help="wav, flac, ogg or mp3.")] = "wav",
    duration: options.Duration = None,
    candidates: Annotated[
        int | None, typer.Option("--candidates", "-n", help="Number of sounds per row.")
    ] = None,
    keep: options.Keep = None,
    variations: options.Variations = None,
    pack: Annotated[
        bool,
        typer.Option(
            "--pack",
            help="A sample pack: folders, equal loudness, licence and credits, and a zip file.",
        ),
    ] = False,
    engine: Annotated[str, typer.Option(help="local, or ray for a cluster.")] = "local",
    workers: Annotated[
        int | None, typer.Option(help="Sounds made in parallel; one per core by default.")
    ] = None,
    address: Annotated[str | None, typer.Option(help="Address of a Ray cluster.")] = None,
    overwrite: options.Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    quiet: options.Quiet = False,
    *,
    settings: options.SettingOptions,
    files: options.OutputOptions,
    model: options.ModelOptions,
) -> None:
    """Make many sounds from a file of prompts; run it again to resume where it stopped.

    A row has a prompt, and may have a name and any of these options as columns. Options given
    here apply to the rows that do not set them.

    \b
    Examples:
      diffsound batch prompts.jsonl --out sounds
      diffsound batch prompts.csv --out sounds --format flac --duration 4
      diffsound batch prompts.csv --out footsteps --pack --rate 48000 --trim
      diffsound batch prompts.jsonl --out /shared/sounds --engine ray --address auto
    """
    from diffsound.batch.pack import pack_file
    from diffsound.batch.run import generate_batch

    try:
        with progress_bar(prompts.name, quiet or as_json) as show:
            report = generate_batch(
                prompts,
                out,
                bundle=model.bundle,
                device=model.device,
                file_format=file_format,
                pack=pack,
                engine=engine,
                workers=workers,
                address=address,
                overwrite=overwrite,
                progress=show,
                duration=duration,
                candidates=candidates,
                keep=keep,
                variations=variations,
                **asdict(settings),
                **files.delivery,
                **options.given(backend=model.backend),
            )
    except KeyboardInterrupt:
        typer.echo("interrupted; run it again to resume", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        failures = [vars(failure) for failure in report.failures]
        shown = {"made": report.made, "kept": report.kept, "failures": failures}
        typer.echo(json.dumps(shown, ensure_ascii=False))
    elif not quiet:
        already = f", {report.kept} already there" if report.kept else ""
        made = "1 sound" if report.made == 1 else f"{report.made} sounds"
        typer.echo(f"{out}: {made} made{already}")
        if pack:
            typer.echo(f"{pack_file(out)}")
    for failure in report.failures:
        typer.echo(f"failed: line {failure.line}: {failure.error}", err=True)
    if report.failures:
        raise typer.Exit(SOME_FAILED)
