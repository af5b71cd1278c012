"""`diffsound train`: train a stage, look at its curves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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


def _train(
    stage: str, config: Path, data: Path, run: Path | None, overrides: list[str], dry_run: bool
) -> None:
    from diffsound.errors import InputError

    if dry_run:
        from diffsound.training.estimate import estimate

        typer.echo(estimate(stage, config, data, overrides))
        return
    if run is None:
        raise InputError("give --run DIR, the folder for checkpoints and logs")
    from diffsound.training.runs import train

    ending = train(stage, config, data, run, overrides)
    typer.echo(f"{ending}; the stage is in {run / 'export'}", err=True)


@app.command()
def codec(
    config: ConfigOption,
    data: DataOption,
    run: RunOption = None,
    set_: SetOption = None,
    dry_run: DryOption = False,
) -> None:
    """Train the VQ-VAE: mel to tokens and back."""
    _train("codec", config, data, run, set_ or [], dry_run)


@app.command()
def vocoder(
    config: ConfigOption,
    data: DataOption,
    run: RunOption = None,
    set_: SetOption = None,
    dry_run: DryOption = False,
) -> None:
    """Train a vocoder on real mels, or on the reconstructions of a trained codec."""
    _train("vocoder", config, data, run, set_ or [], dry_run)


@app.command()
def decoder(
    config: ConfigOption,
    data: DataOption,
    run: RunOption = None,
    set_: SetOption = None,
    dry_run: DryOption = False,
) -> None:
    """Train a token decoder, AR or Diffsound, on a codec's tokens and encoded texts."""
    _train("decoder", config, data, run, set_ or [], dry_run)


@app.command()
def classifier(
    config: ConfigOption,
    data: DataOption,
    run: RunOption = None,
    set_: SetOption = None,
    dry_run: DryOption = False,
) -> None:
    """Train the classifier that FID, KL and the other metrics listen with."""
    _train("classifier", config, data, run, set_ or [], dry_run)


@app.command()
def captioner(
    config: ConfigOption,
    data: DataOption,
    run: RunOption = None,
    set_: SetOption = None,
    dry_run: DryOption = False,
) -> None:
    """Train the captioner that ranks candidates and scores how well sounds fit their texts."""
    _train("captioner", config, data, run, set_ or [], dry_run)


@app.command()
def plot(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    out: Annotated[Path | None, typer.Option("--out", help="PNG file (RUN/curves.png).")] = None,
) -> None:
    """Draw the run's curves into a PNG."""
    from diffsound.training.plots import plot_run

    typer.echo(str(plot_run(run, out)))
