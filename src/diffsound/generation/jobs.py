"""The keywords of a call, and the jobs it becomes: prompts with their seeds, checked."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import torch

from diffsound.errors import InputError
from diffsound.generation.progress import ProgressCallback
from diffsound.generation.settings import (
    MAX_SEED,
    SHORT_SEEDS,
    GivenSettings,
    TakeSettings,
    check,
)
from diffsound.judges.ranking import Ranker
from diffsound.text.clean import clean_prompt


class LoadOptions(TypedDict, total=False):
    """How a bundle is run: the keywords of `TextToSound(bundle, …)`."""

    device: torch.device | str
    backend: str | None
    max_batch_seconds: float
    ranker: Ranker | None


class EditOptions(GivenSettings, total=False):
    """The keywords of an edit; its duration is the clip's."""

    num_candidates: int
    seed: int | None
    generator: torch.Generator | None
    callback: ProgressCallback | None


@dataclass(frozen=True)
class Job:
    """One sound to be made: a prompt with its own seed."""

    prompt: str
    seed: int


def make_jobs(
    prompt: str | Sequence[str],
    num_candidates: int,
    seed: int | None,
    generator: torch.Generator | None = None,
) -> list[Job]:
    """Every prompt with its candidates' seeds, checked."""
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    if not prompts:
        raise InputError("give at least one prompt")
    check(TakeSettings, {"num_candidates": num_candidates, "seed": seed})
    first = _first_seed(seed, generator)
    return [
        Job(text, (first + i) % (MAX_SEED + 1))
        for text in map(clean_prompt, prompts)
        for i in range(num_candidates)
    ]


def take_seed(seed: int, take: int) -> int:
    """The seed of the `take`-th draw for one sound; the first is the sound's own."""
    return seed if take == 0 else _derived_seed(seed, take)


def layer_seed(seed: int, layer: int) -> int:
    """The seed of a scene's `layer`-th sound; the first has the scene's own."""
    return seed if layer == 0 else _derived_seed(seed, 0, layer)


def noise_seed(seed: int) -> int:
    """The seed of the noise that codec and vocoder draw for a take of this seed."""
    return _derived_seed(seed, 0, 0, 1)


def seam_seed(seed: int) -> int:
    """The seed of the tokens drawn again around the seam of a loop."""
    return _derived_seed(seed, 0, 0, 2)


def _derived_seed(*path: int) -> int:
    return int(np.random.SeedSequence(path).generate_state(1, np.uint64)[0]) >> 1


def _first_seed(seed: int | None, generator: torch.Generator | None) -> int:
    if seed is not None and generator is not None:
        raise InputError("give a seed or a generator, not both")
    if generator is not None:
        return int(torch.randint(SHORT_SEEDS, (), generator=generator))
    return secrets.randbelow(SHORT_SEEDS) if seed is None else seed
