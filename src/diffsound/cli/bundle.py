"""`diffsound bundle`: look into models, check them, bring published checkpoints in."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from diffsound.cli.main import fail

app = typer.Typer(help="Inspect, verify and import models.", no_args_is_help=True)

BundleArgument = Annotated[
    str | None, typer.Argument(help="Bundle folder or hub id; the bundled model by default.")
]


@app.command()
def inspect(
    bundle: BundleArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a bundle is made of."""
    from diffsound.bundle import describe

    description = describe(bundle)
    if as_json:
        typer.echo(json.dumps(description, indent=2))
        return
    for key, value in description.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        typer.echo(f"{key:>15}  {text}")


@app.command()
def verify(bundle: BundleArgument = None) -> None:
    """Check every file's checksum and that the stages fit each other."""
    from diffsound.bundle import resolve
    from diffsound.bundle import verify as check

    folder = resolve(bundle)
    problems = check(folder)
    if problems:
        fail(f"{folder}: {'; '.join(problems)}")
    typer.echo(f"{folder}: good")
