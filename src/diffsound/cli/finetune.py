"""`diffsound finetune`: teach a model your own sounds."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from diffsound.cli import options


def command(
    bundle: Annotated[
        str | None, typer.Argument(help="Bundle to start from; the bundled model by default.")
    ] = None,
    *,
    data: Annotated[
        Path, typer.Option("--data", help="Folder of sounds, or one made by `data prepare`.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the new bundle.")],
    minutes: Annotated[float, typer.Option(help="Longest time to train.")] = 30.0,
    method: Annotated[
        Literal["lora", "full"],
        typer.Option(help="Train a small update (lora) or every weight (full)."),
    ] = "lora",
    rank: Annotated[int, typer.Option(help="Size of the lora update.")] = 8,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate; 1e-3 for lora, 1e-4 for full.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    name: Annotated[
        str | None, typer.Option(help="Name of the bundle; by default the folder's.")
    ] = None,
    work: Annotated[
        Path | None, typer.Option(help="Folder for data and run; by default OUT-work.")
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Teach a model your own sounds. One in eight is held out, to stop before it overfits.

    \b
    Examples:
      diffsound finetune --data my_sounds --out my-model --minutes 30
      diffsound "rusty gate creaks open" -b my-model
    """
    from diffsound.training.finetune import finetune

    def say(text: str) -> None:
        if not quiet:
            typer.echo(text, err=True)

    result = finetune(
        bundle,
        data,
        out,
        minutes=minutes,
        method=method,
        rank=rank,
        lr=lr,
        seed=seed,
        name=name,
        work=work,
        quiet=quiet,
        say=say,
    )
    if result.improved:
        say(
            f"held-out loss {result.before:.3f} → {result.after:.3f} after {result.steps} steps "
            f"(perplexity down {result.perplexity_drop:.1f} %)"
        )
    else:
        say(
            "the held-out sounds did not improve, so the model is unchanged; "
            "more sounds or other captions may help"
        )
    if result.pair is not None:
        before, after = result.pair
        say(f'compare: {before} and {after} ("{result.prompt}")')
    say(f"try: diffsound {shlex.quote(result.prompt)} -b {shlex.quote(str(out))}")
    typer.echo(str(out))
