"""`diffsound remake`: a sound again, from the recipe in its file; `diffsound info`: the recipe."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from diffsound.cli import options
from diffsound.cli.output import Target, make_sounds
from diffsound.errors import InputError
from diffsound.generation.settings import SETTINGS, short_name


@options.spread
def command(
    file: Annotated[Path, typer.Argument(help="A sound that diffsound made.")],
    duration: options.Duration = None,
    stems: options.Stems = False,
    *,
    making: options.MakingOptions,
) -> None:
    """Make a sound again from its file, as it is or with changes.

    Options replace what the file says. Without --output, NAME.wav becomes NAME-remade.wav.

    \b
    Examples:
      diffsound remake rain.flac
      diffsound remake rain.flac --seed 8 --duration 10 -o longer.flac
      diffsound remake rain.flac --seed 100 -n 4
    """
    from diffsound.generation.settings import complete
    from diffsound.generation.sound import check_complete, read_recipe, recipe_settings

    recipe = check_complete(file, read_recipe(file))
    changes: Any = options.given(duration=duration) | making.settings
    settings: Any = complete(recipe_settings(recipe), changes).model_dump()
    _check_bundle(file, recipe.get("bundle"), making)
    making = replace(
        making,
        output=making.output or file.with_stem(f"{file.stem}-remade"),
        seed=recipe["seed"] if making.seed is None else making.seed,
    )
    make_sounds(
        lambda pipeline, **rest: pipeline(recipe["prompt"], **(rest | settings)),
        recipe["prompt"],
        Target.asked(making, stems=stems),
        making,
    )


def _check_bundle(file: Path, name: object, making: options.MakingOptions) -> None:
    """Refuse another model than the file's, unless it was asked for by name."""
    from diffsound.model.bundle import read_config, resolve

    found = read_config(resolve(making.bundle)).name
    if name in (None, found):
        return
    if making.bundle is None:
        raise InputError(f"{file} was made with the model '{name}'; give its folder with --bundle")
    if not making.quiet:
        typer.echo(f"note: {file} was made with '{name}'; '{found}' will sound different", err=True)


_FIRST = ("prompt", "seed", "bundle")


def info(
    file: Annotated[Path, typer.Argument(help="A sound: WAV, FLAC, OGG or MP3.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the recipe as JSON.")] = False,
) -> None:
    """Show what a file was made from.

    \b
    Examples:
      diffsound info rain.flac
      diffsound info rain.flac --json
    """
    from diffsound.audio.io import describe_audio
    from diffsound.generation.sound import read_recipe

    recipe = read_recipe(file)
    if as_json:
        typer.echo(json.dumps(recipe, ensure_ascii=False))
        return
    typer.echo(f"{file}: {describe_audio(file)}")
    if recipe is None:
        typer.echo("  no recipe: it was not made by diffsound")
        return
    for line in _lines(recipe):
        typer.echo(f"  {line}")
    if "edit" not in recipe and "prompt" in recipe:
        typer.echo(f"make it again: diffsound remake {shlex.quote(str(file))}")


def _lines(recipe: dict[str, Any]) -> list[str]:
    """The recipe in plain words, what was asked for first."""
    first = {name: recipe[name] for name in _FIRST if name in recipe}
    rest = {n: v for n, v in recipe.items() if n not in (*_FIRST, "coverage", "layers")}
    lines = [f"{_plain(_words(name))}: {_plain(value)}" for name, value in (first | rest).items()]
    coverage = recipe.get("coverage")
    if isinstance(coverage, dict) and "note" in coverage:
        lines.append(_plain(coverage["note"]))
    layers = recipe.get("layers")
    for layer in layers if isinstance(layers, list) else []:
        if isinstance(layer, dict):
            start, end, text = (_plain(layer.get(name)) for name in ("start", "end", "text"))
            lines.append(f"layer: {start} to {end} s: {text}")
    return lines


def _words(name: str) -> str:
    if name == "bundle":
        return "model"
    return (short_name(name) if name in SETTINGS else name).replace("_", " ")


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    # A file from a stranger must not send commands to the terminal.
    return "".join(letter if letter.isprintable() else " " for letter in text)
