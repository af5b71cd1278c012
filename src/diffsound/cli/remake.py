"""`diffsound remake`: a sound again, from the recipe in its file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from diffsound.cli import options
from diffsound.cli.output import Target, make_sounds
from diffsound.errors import InputError


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
    from diffsound.generation.recipes import check_complete, read_recipe, recipe_settings
    from diffsound.generation.settings import complete

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
