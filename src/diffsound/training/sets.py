"""Loaders for the stages that learn from waves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from diffsound.data.augment import AugmentConfig
from diffsound.data.datasets import WaveDataset
from diffsound.data.loaders import EpochLoader, ItemSampler
from diffsound.data.samplers import BalancedSampler, SequentialSampler, ShuffledSampler
from diffsound.data.shards import PreparedData
from diffsound.errors import DataError
from diffsound.training.config import DataConfig, RunConfig


@dataclass(frozen=True)
class Process:
    """Which of the run's processes this is."""

    rank: int = 0
    world: int = 1


def clips_of(data: PreparedData, config: DataConfig, split: str) -> list[int]:
    """Positions of the split's clips under the licences asked for; refused if there are none."""
    found = data.where(split=split, licences=config.licences)
    if not found:
        filters = f"split '{split}'"
        if config.licences is not None:
            filters += f" and licences {', '.join(config.licences)}"
        raise DataError(f"{data.folder} has no clip with {filters}; change the data group")
    return found


def check_rate(data: PreparedData, sample_rate: int) -> None:
    """Refuse data prepared at another sample rate than the stage's mel is made for."""
    found = data.index.mel.sample_rate
    if found != sample_rate:
        raise DataError(
            f"{data.folder} was prepared at {found} Hz, this config's mel is for {sample_rate} Hz; "
            "prepare the data again, or change mel.sample_rate"
        )


def sampler_for(labels: Sequence[int], balance: float, seed: int) -> ItemSampler:
    """Shuffled clips, drawn more evenly over the classes the nearer `balance` is to 1."""
    if balance == 0:
        return ShuffledSampler(len(labels), seed)
    temperature = 1.0 / (1.0 - balance) if balance < 1 else float("inf")
    return BalancedSampler(labels, seed, temperature=temperature)


def spread(items: Sequence[int], count: int) -> list[int]:
    """`count` items evenly spread over all of them (0: all), for splits sorted by class."""
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
    """The same windows of the validation clips at every call: their beginnings, in order."""

    def __init__(
        self, run: RunConfig, data: PreparedData, samples: int, clips: int, batch_size: int
    ) -> None:
        found = clips_of(data, run.data, run.data.valid_split)
        dataset = WaveDataset(data, spread(found, clips), samples, cache=run.data.cache)
        self._loader = EpochLoader(
            dataset, SequentialSampler(len(dataset)), batch_size, drop_last=False
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._loader.batches(0)
