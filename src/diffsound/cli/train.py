"""`diffsound train`: train a stage, plot its curves; `diffsound finetune`: add your own sounds."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from diffsound.cli import options
from diffsound.errors import InputError
from diffsound.training.config import STAGES

HELP = """Train a stage of the model.

\b
Examples:
  diffsound train codec --config configs/small/codec.yaml --data data/mine --run runs/codec
  diffsound train plot runs/codec
"""

app = typer.Typer(help=HELP, no_args_is_help=True)

ConfigOption = Annotated[Path, typer.Option("--config", help="YAML file of the experiment.")]
DataOption = Annotated[Path, typer.Option("--data", help="Folder made by `data prepare`.")]
RunOption = Annotated[
    Path | None,
    typer.Option("--run", help="Folder of the run; a run in it is resumed."),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Override a setting: --set train.lr=1e-4")
]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Only estimate size, memory and time.")]


def _command(stage: str) -> Callable[..., None]:
    """The command that trains a stage; all stages take the same options."""

    def train(
        config: ConfigOption,
        data: DataOption,
        run: RunOption = None,
        set_: SetOption = None,
        dry_run: DryOption = False,
    ) -> None:
        if dry_run:
            from diffsound.training.runs import estimate

            typer.echo(estimate(stage, config, data, set_ or []))
            return
        if run is None:
            raise InputError("give --run DIR, the folder for checkpoints and logs")
        from diffsound.training.runs import train as start

        ending = start(stage, config, data, run, set_ or [])
        typer.echo(f"{ending}; the stage is in {run / 'export'}", err=True)

    return train


for _stage, _purpose in STAGES.items():
    app.command(_stage, help=_purpose)(_command(_stage))


@app.command()
def plot(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    out: Annotated[Path | None, typer.Option("--out", help="PNG file (RUN/curves.png).")] = None,
) -> None:
    """Draw the run's curves into a PNG."""
    from diffsound.training.run_files import plot_run

    typer.echo(str(plot_run(run, out)))


def finetune(
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
