"""What the stages that learn from waves share: loaders, fixed validation clips, augmentation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import Field, NonNegativeInt
from torch import Tensor

from diffsound.config import Config
from diffsound.data.datasets import AugmentConfig, WaveDataset
from diffsound.data.loaders import (
    BalancedSampler,
    EpochLoader,
    FixedSampler,
    ItemSampler,
    ShuffledSampler,
)
from diffsound.data.shards import PreparedData
from diffsound.errors import DataError
from diffsound.training.config import DataConfig, RunConfig


@dataclass(frozen=True)
class Process:
    """Which of the run's processes this is."""

    rank: int = 0
    world: int = 1


def clips_of(data: PreparedData, config: DataConfig, split: str) -> list[int]:
    """Positions of the clips that the data group asks for; an empty selection is refused."""
    found = data.where(split=split, licences=config.licences, sources=config.sources)
    if config.subset < 1 and split == config.train_split:
        found = [at for at in found if _lot(data.records[at].id, config) < config.subset]
    if not found:
        filters = f"split '{split}'"
        if config.licences is not None:
            filters += f" and licences {', '.join(config.licences)}"
        if config.sources is not None:
            filters += f" of {', '.join(config.sources)}"
        if config.subset < 1:
            filters += f" in a subset of {config.subset:g}"
        raise DataError(f"{data.folder} has no clip with {filters}; change the data group")
    return found


def _lot(clip: str, config: DataConfig) -> float:
    """A number from 0 to 1 that a clip draws once and for all."""
    digest = hashlib.sha256(f"{config.subset_seed}/{clip}".encode()).digest()
    return int.from_bytes(digest[:8]) / 2**64


def check_rate(data: PreparedData, sample_rate: int) -> None:
    """Refuse data prepared at another sample rate than the stage's mel expects."""
    found = data.index.mel.sample_rate
    if found != sample_rate:
        raise DataError(
            f"{data.folder} was prepared at {found} Hz, this config's mel is for {sample_rate} Hz; "
            "prepare the data again, or change mel.sample_rate"
        )


def sampler_for(labels: Sequence[int], balance: float, seed: int) -> ItemSampler:
    """Shuffled clips; 0 draws clips evenly, 1 draws classes evenly."""
    if balance == 0:
        return ShuffledSampler(len(labels), seed)
    return BalancedSampler(labels, seed, balance=balance)


def spread(items: Sequence[int], count: int) -> list[int]:
    """`count` items spread evenly over all (0: all of them), for splits sorted by class."""
    if not count or count >= len(items):
        return list(items)
    return [items[i * len(items) // count] for i in range(count)]


def wave_loader(
    run: RunConfig, data: PreparedData, samples: int, augment: AugmentConfig, process: Process
) -> EpochLoader:
    """Batches of random windows {"wave": [B, samples], "id", "label"} of the training clips."""
    clips = clips_of(data, run.data, run.data.train_split)
    dataset = WaveDataset(data, clips, samples, augment, cache=run.data.cache)
    labels = [dataset.label(index) for index in range(len(dataset))]
    return EpochLoader(
        dataset,
        sampler_for(labels, run.data.balance, run.train.seed),
        run.train.batch_size,
        seed=run.train.seed,
        rank=process.rank,
        world=process.world,
        workers=run.data.workers,
    )


class FixedWaves:
    """The beginnings of the validation clips, in order, the same at every call."""

    def __init__(
        self, run: RunConfig, data: PreparedData, samples: int, clips: int, batch_size: int
    ) -> None:
        found = clips_of(data, run.data, run.data.valid_split)
        dataset = WaveDataset(data, spread(found, clips), samples, cache=run.data.cache)
        self._loader = EpochLoader(
            dataset, FixedSampler(range(len(dataset))), batch_size, drop_last=False
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._loader.batches(0)


class MaskConfig(Config):
    """SpecAugment (Park et al. 2019, arXiv:1904.08779): hides stretches of time and of bands.

    bands, frames: width of the widest stretch; widths are uniform from 0. band_masks, frame_masks:
        number of stretches.
    """

    bands: NonNegativeInt = 10
    band_masks: NonNegativeInt = 2
    frames: NonNegativeInt = 24
    frame_masks: NonNegativeInt = 2


def mask_mels(
    mel: Tensor, how: MaskConfig, generator: torch.Generator, fill: Tensor | float = 0.0
) -> Tensor:
    """Mel [B, n_mels, L] with random stretches of each clip replaced by `fill` (broadcast)."""
    clips, n_mels, length = mel.shape
    hidden = torch.zeros(clips, n_mels, length, dtype=torch.bool)
    for _ in range(how.band_masks):
        hidden |= _stretches(clips, n_mels, how.bands, generator)[:, :, None]
    for _ in range(how.frame_masks):
        hidden |= _stretches(clips, length, how.frames, generator)[:, None, :]
    return torch.where(hidden.to(mel.device), fill, mel)


def _stretches(clips: int, size: int, widest: int, generator: torch.Generator) -> Tensor:
    """bool [clips, size], True in one stretch of each row."""
    width = torch.rand(clips, 1, generator=generator) * min(widest, size)
    start = torch.rand(clips, 1, generator=generator) * (size - width)
    place = torch.arange(size)[None] + 0.5
    return (place > start) & (place < start + width)


class MixConfig(Config):
    """Between-class learning (Tokozume et al. 2018, arXiv:1711.10282).

    probability: of a clip being mixed with another; the targets are mixed in the same shares.
    """

    probability: float = Field(default=0.5, ge=0, le=1)


def mix_waves(
    wave: Tensor, target: Tensor, how: MixConfig, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Waves [B, samples] and targets [B, classes], some mixed with another of the batch.

    A share r of the target is a share r of the audible level: amplitudes follow from the waves'
    levels, so that a loud clip does not drown a quiet one with the same share of the target.
    """
    clips = len(wave)
    other = torch.randperm(clips, generator=generator).to(wave.device)
    share = torch.rand(clips, 1, generator=generator).clamp(0.05, 0.95)
    kept = torch.rand(clips, 1, generator=generator) >= how.probability
    share = share.masked_fill(kept, 1.0).to(wave)
    level = wave.square().mean(dim=1, keepdim=True).sqrt().clamp_min(1e-5)
    weight = 1.0 / (1.0 + level / level[other] * (1.0 - share) / share)
    # Uncorrelated waves add in power; dividing by the norm keeps the level of the mixture.
    norm = (weight.square() + (1.0 - weight).square()).sqrt()
    mixed = (weight * wave + (1.0 - weight) * wave[other]) / norm
    return mixed, share * target + (1.0 - share) * target[other]
