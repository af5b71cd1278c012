"""`diffsound train`: train a stage, plot its curves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

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
    from diffsound.training.logs import plot_run

    typer.echo(str(plot_run(run, out)))
