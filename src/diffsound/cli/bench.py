"""`diffsound bench`: the speed on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from diffsound.cli import options


@options.spread
def command(
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
