"""The keywords of a call, the jobs it becomes (prompts with their seeds, checked), its progress."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diffsound.errors import InputError
from diffsound.generation.settings import (
    MAX_SEED,
    SHORT_SEEDS,
    GivenSettings,
    TakeSettings,
    check,
)
from diffsound.judges.ranking import Ranker
from diffsound.text import clean_prompt
from diffsound.threads import torch_threads

if TYPE_CHECKING:
    from diffsound.generation.pipeline import TextToSound

# Called after every sampling step with the finished share of the whole call (0 to 1) and the
# current tokens [B, F', L'] of the running micro-batch.
ProgressCallback = Callable[[float, Tensor], None]
ItemT = TypeVar("ItemT")
_FEW_COLUMNS = 16  # below this a second core is no help, and rounds differently: threads.py


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


def part_of(
    callback: ProgressCallback | None, done: int, part: int, total: int
) -> ProgressCallback | None:
    """For a call that makes `part` of `total` sounds, after `done` of them."""
    if callback is None:
        return None
    return lambda share, tokens: callback((done + part * share) / total, tokens)


@dataclass
class Progress:
    """Counts the sounds of a call and calls back after every sampling step."""

    callback: ProgressCallback | None
    sounds: int
    finished: int = 0
    running: int = 0

    def next_batch(self, sounds: int) -> None:
        """The running batch is finished; one of this many sounds begins."""
        self.finished += self.running
        self.running = sounds

    def step(self, done: int, total: int, tokens: Tensor) -> None:
        """tokens: [sounds x takes, F', L'], of which the callback sees the first take of each."""
        if self.callback is not None:
            share = (self.finished + self.running * done / total) / self.sounds
            self.callback(share, tokens[:: len(tokens) // self.running])

    def first_half(self, done: int, total: int, tokens: Tensor) -> None:
        """`step` of a sound that is drawn twice, the first time."""
        self.step(done, 2 * total, tokens)

    def second_half(self, done: int, total: int, tokens: Tensor) -> None:
        self.step(total + done, 2 * total, tokens)


def unfinished_mel(pipeline: TextToSound, tokens: Tensor) -> NDArray[np.float32]:
    """The mel [n_mels, L] of tokens [F', L'] some of which are still the mask.

    A masked cell is filled from its neighbours in time, and the mel is as bright as the share of
    cells already drawn.
    """
    codec = pipeline.bundle.codec
    drawn = tokens < codec.codebook_size
    filled = _fill(tokens.cpu().numpy(), drawn.cpu().numpy())
    with torch.inference_mode():
        mel = codec.mean(torch.from_numpy(filled)[None].to(pipeline.device))[0].clamp(0, 1).cpu()
    share = drawn.float().cpu()
    if codec.config.rows_are_bands:
        share = share.repeat_interleave(mel.shape[0] // codec.rows, dim=0)
    else:
        share = share.mean(0, keepdim=True)
    return (mel * share.repeat_interleave(codec.time_stride, dim=1)).numpy()


def _fill(tokens: NDArray[Any], drawn: NDArray[np.bool_]) -> NDArray[Any]:
    """Each cell that is not drawn takes the last drawn one before it, else the first after it."""
    columns = np.arange(tokens.shape[1])
    before = np.maximum.accumulate(np.where(drawn, columns, -1), axis=1)
    first = np.where(drawn.any(1), drawn.argmax(1), 0)[:, None]
    source = np.where(before >= 0, before, first)
    filled = np.take_along_axis(tokens, source, axis=1)
    return np.where(drawn.any(1, keepdims=True), filled, 0)


def generators(seeds: Iterable[int]) -> list[torch.Generator]:
    """One on the CPU for each seed."""
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def decoder_threads(columns: int) -> AbstractContextManager[None]:
    """Let a decoder use one core for a short grid, and all of them for others."""
    return torch_threads(1 if columns < _FEW_COLUMNS else torch.get_num_threads())


def pick(items: Sequence[ItemT], places: Tensor) -> list[ItemT]:
    """The items at these places."""
    return [items[place] for place in places.tolist()]
