"""`diffsound finetune`: teach a model your own sounds."""

from __future__ import annotations

import math
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
    minutes: Annotated[float, typer.Option(help="Time to train, at most.")] = 30.0,
    method: Annotated[
        Literal["lora", "full"],
        typer.Option(help="Learn a small update (lora), or every weight (full)."),
    ] = "lora",
    rank: Annotated[int, typer.Option(help="Size of the lora update.")] = 8,
    lr: Annotated[float | None, typer.Option(help="Learning rate; 1e-3 lora, 1e-4 full.")] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    name: Annotated[
        str | None, typer.Option(help="Name of the bundle; the folder's if missing.")
    ] = None,
    work: Annotated[
        Path | None, typer.Option(help="Folder for data and run; OUT-work if missing.")
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Teach a model your own sounds; one in eight is kept to check by, so that it stops in time.

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
    gain = 100 * (1 - math.exp(result.after - result.before))
    say(
        f"held-out loss {result.before:.3f} → {result.after:.3f} after {result.steps} steps "
        f"({gain:.1f} % less perplexed)"
        if result.improved
        else "the held-out sounds were not heard better than before: nothing was changed; "
        "more sounds or other captions may help"
    )
    typer.echo(str(out))
