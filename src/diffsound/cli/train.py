"""`diffsound train`: train a stage, look at its curves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from diffsound.errors import InputError

HELP = """Train a stage of the model.

\b
Examples:
  diffsound train codec --config configs/small/codec.yaml --data data/mine --run runs/codec
  diffsound train plot runs/codec
"""

app = typer.Typer(help=HELP, no_args_is_help=True)

ConfigOption = Annotated[Path, typer.Option("--config", help="The experiment's YAML file.")]
DataOption = Annotated[Path, typer.Option("--data", help="A folder made by `data prepare`.")]
RunOption = Annotated[
    Path | None, typer.Option("--run", help="The run's folder; a run there goes on.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Override a setting: --set train.lr=1e-4")
]
DryOption = Annotated[
    bool, typer.Option("--dry-run", help="Only say how large it is and how long it will take.")
]


STAGES = {
    "codec": "Train the VQ-VAE: mel to tokens and back.",
    "vocoder": "Train a vocoder on real mels, or on the reconstructions of a trained codec.",
    "decoder": "Train a token decoder, AR or Diffsound, on a codec's tokens and encoded texts.",
    "classifier": "Train the classifier that FID, KL and the other metrics listen with.",
    "captioner": "Train the captioner that scores how well sounds fit texts, word by word.",
    "matcher": "Train the matcher that chooses among candidates: sounds and texts in one space.",
}


def _command(stage: str) -> Callable[..., None]:
    """The command that trains a stage: all of them take the same options."""

    def train(
        config: ConfigOption,
        data: DataOption,
        run: RunOption = None,
        set_: SetOption = None,
        dry_run: DryOption = False,
    ) -> None:
        if dry_run:
            from diffsound.training.estimate import estimate

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
    from diffsound.training.plots import plot_run

    typer.echo(str(plot_run(run, out)))
