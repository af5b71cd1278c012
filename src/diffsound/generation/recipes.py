"""The recipe in a file: everything needed to make its sound again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

from diffsound.audio.io import read_metadata
from diffsound.errors import InputError
from diffsound.files import parse_json
from diffsound.generation.settings import SETTINGS, GenerationSettings, complete


def read_recipe(source: str | Path | BinaryIO) -> dict[str, Any] | None:
    """The `Sound.metadata` that `Sound.save` put into a file; None when there is none."""
    recipe = read_metadata(source).get("diffsound")
    if isinstance(recipe, str):  # older files have JSON inside JSON
        try:
            recipe = parse_json(recipe)
        except ValueError:
            return None
    return recipe if isinstance(recipe, dict) else None


def read_prompt(path: Path) -> str:
    """The prompt that a file was made from."""
    recipe = read_recipe(path)
    if recipe is None or "prompt" not in recipe:
        raise InputError(f"{path} does not say what it was made from; give a prompt")
    return str(recipe["prompt"])


def check_complete(path: Path, recipe: dict[str, Any] | None) -> dict[str, Any]:
    """The recipe, if it is enough to make the sound again."""
    if recipe is None:
        raise InputError(f"{path} has no recipe: it was not made by diffsound")
    if "edit" in recipe:
        raise InputError(f"{path} is an edit and cannot be remade without the clip it changed")
    if "text" in recipe:
        raise InputError(f"{path} is one layer of a scene; remake the scene with --stems")
    if not isinstance(recipe.get("prompt"), str) or not isinstance(recipe.get("seed"), int):
        raise InputError(f"{path} has a recipe that lacks a prompt or a seed")
    return recipe


def recipe_settings(recipe: dict[str, Any]) -> GenerationSettings:
    """The settings of a recipe, checked; those it does not name are None."""
    given: Any = {name: value for name, value in recipe.items() if name in SETTINGS}
    return complete(GenerationSettings(), given)
