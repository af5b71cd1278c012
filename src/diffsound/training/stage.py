"""What a training stage is, and what stages share.

A stage has modules that learn and losses that they take turns at. Stages that learn from waves
share loaders, fixed validation clips and augmentation.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, model_validator
from torch import Tensor, nn

from diffsound.config import Config
from diffsound.data.datasets import AugmentConfig, WaveDataset
from diffsound.data.loaders import (
    BalancedSampler,
    ClipDataset,
    EpochLoader,
    FixedSampler,
    ItemSampler,
    ShuffledSampler,
)
from diffsound.data.record import Record
from diffsound.data.shards import PreparedData, TextData
from diffsound.errors import ConfigError, DataError
from diffsound.training.config import Betas, DataConfig, RunConfig, TrainConfig

Batch = dict[str, Any]


@dataclass
class Player:
    """A module with an optimizer of its own (a GAN has two players, other stages one)."""

    module: nn.Module
    lr: float
    betas: Betas
    weight_decay: float = 0.0

    @classmethod
    def of(cls, module: nn.Module, config: TrainConfig) -> Player:
        """A player with the run's own optimizer settings."""
        return cls(module, config.lr, config.betas, config.weight_decay)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Matrices decay; biases, norms and embeddings (code vectors among them) do not."""
        embeddings = {
            id(module.weight)
            for module in self.module.modules()
            if isinstance(module, nn.Embedding)
        }
        decayed: list[nn.Parameter] = []
        kept: list[nn.Parameter] = []
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                plain = parameter.ndim < 2 or id(parameter) in embeddings
                (kept if plain else decayed).append(parameter)
        groups = [(decayed, self.weight_decay), (kept, 0.0)]
        return [{"params": params, "weight_decay": decay} for params, decay in groups if params]


@dataclass(frozen=True)
class Turn:
    """One player's loss on a batch; the loop differentiates it and updates that player alone.

    logs: named scalars; the loop detaches them and averages over steps and processes.
    """

    player: str
    loss: Tensor
    logs: Mapping[str, Tensor | float] = field(default_factory=dict)


@dataclass(frozen=True)
class Moment:
    """Where the run is when a batch is seen.

    generator: on the CPU, seeded from (seed, step, micro-step, process). A loss may draw from it
    or from torch's global generator, which has the same seed, and from nothing else.
    """

    step: int
    epoch: int
    generator: torch.Generator

    @classmethod
    def at(cls, seed: int, step: int, epoch: int, micro: int, process: int) -> Moment:
        """The moment with its generator; seeds torch's global generator too."""
        words = np.random.SeedSequence([seed, step, micro, process]).generate_state(1, np.uint64)
        torch.manual_seed(int(words[0]))
        return cls(step, epoch, torch.Generator().manual_seed(int(words[0])))


class AdversarialSchedule(Config):
    """When a GAN stage's discriminator comes in, and how strongly.

    start_steps, start_epochs: the discriminator is off until then.
    ramp_steps: steps over which its weight rises to the full value; an untrained discriminator
        gives no useful gradient.
    lr, betas, weight_decay: of the discriminator's own optimizer; lr None takes the run's.
    """

    weight: NonNegativeFloat
    feature_matching: NonNegativeFloat = 0.0
    start_steps: NonNegativeInt = 0
    start_epochs: NonNegativeInt = 0
    ramp_steps: NonNegativeInt = 0
    lr: PositiveFloat | None = None
    betas: Betas = (0.5, 0.9)
    weight_decay: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _ramp_has_a_start(self) -> AdversarialSchedule:
        if self.ramp_steps and self.start_epochs:
            raise ValueError("ramp_steps counts from start_steps; give that instead of epochs")
        return self

    def strength(self, moment: Moment) -> float:
        """0 while the discriminator is off, 1 at full weight."""
        if moment.step < self.start_steps or moment.epoch < self.start_epochs:
            return 0.0
        if not self.ramp_steps:
            return 1.0
        return min(1.0, (moment.step - self.start_steps + 1) / self.ramp_steps)


class Stage(ABC):
    """The modules of one stage, their losses, and the data they learn from.

    The first player is the stage's product: it is averaged, validated and exported.
    """

    kind: ClassVar[str]
    metric: str  # validation figure that picks the best checkpoint; lower is better

    players: dict[str, Player]
    loader: EpochLoader
    device: torch.device

    def __init__(self) -> None:
        self.players = {}
        self.prepared: dict[str, nn.Module] = {}
        self.device = torch.device("cpu")

    def attach(self, prepared: Mapping[str, nn.Module], device: torch.device) -> None:
        """Take the players as wrapped for many processes and mixed precision.

        A player learns through `self.prepared[name](…)`; the bare module in `self.players` is for
        passes in which it does not learn. Other networks of the stage (a front end, a frozen codec)
        go to the device as they are.
        """
        self.prepared = dict(prepared)
        self.device = device
        for part in vars(self).values():
            if isinstance(part, nn.Module):
                part.to(device)

    def ready(self) -> None:  # noqa: B027
        """Called when the first weights are in place, before training."""

    def shard(self, module: nn.Module, device: str) -> None:
        """Divide a player, or the product's average, over the processes (see `engine.shard`)."""
        raise ConfigError(f"train.shard is for the decoder; a {self.kind} fits on one device")

    def compile(self) -> None:
        """Compile the players with torch.compile."""
        for player in self.players.values():
            player.module.compile()

    @property
    def product(self) -> nn.Module:
        return next(iter(self.players.values())).module

    @abstractmethod
    def turns(self, batch: Batch, moment: Moment) -> Iterator[Turn]:
        """The players' losses on a batch, in order; each player is updated before the next turn."""

    @abstractmethod
    def validate(self, module: nn.Module) -> dict[str, float]:
        """Figures of `module` (the averaged product) on held-out clips, with fixed seeds."""

    def sample(self, module: nn.Module, folder: Path) -> None:  # noqa: B027
        """Write pictures and sounds that show the state of training; nothing by default."""

    def export_state(self, module: nn.Module) -> dict[str, Tensor]:
        """The weights of `module` (the averaged product) to export."""
        return module.state_dict()

    @abstractmethod
    def export_config(self) -> dict[str, Any]:
        """Every constant needed to rebuild the product, as JSON."""


@contextmanager
def frozen(module: nn.Module) -> Iterator[nn.Module]:
    """Let gradients flow through `module` to its input, but not to its weights."""
    learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        yield module
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)


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
    """The clip's own number from 0 to 1; it depends on nothing but its id and the seed."""
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


def spread(items: Sequence[int], count: int) -> list[int]:
    """`count` items spread evenly over all (0: all of them), for splits sorted by class."""
    if not count or count >= len(items):
        return list(items)
    return [items[i * len(items) // count] for i in range(count)]


def train_loader(
    run: RunConfig,
    dataset: ClipDataset,
    sampler: ItemSampler,
    process: Process,
    bucket_by: Callable[[int], Hashable] | None = None,
) -> EpochLoader:
    """The batches that this process of a run trains on."""
    return EpochLoader(
        dataset,
        sampler,
        run.train.batch_size,
        seed=run.train.seed,
        rank=process.rank,
        world=process.world,
        workers=run.data.workers,
        bucket_by=bucket_by,
    )


def wave_sampler(run: RunConfig, dataset: WaveDataset) -> ItemSampler:
    """Shuffled clips, or sources and classes balanced as the data group says."""
    how, seed = run.data, run.train.seed
    if how.balance == 0 and not how.favour:
        return ShuffledSampler(len(dataset), seed)
    records = [dataset.records[clip] for clip in dataset.indices]
    return balanced_sampler(records, how, seed, len(dataset))


def balanced_sampler(
    records: Sequence[Record], how: DataConfig, seed: int, size: int
) -> BalancedSampler:
    """Clips by source and class, some sources and rare classes more often."""
    return BalancedSampler(
        [(record.source, record.labels[:1] if how.balance else ()) for record in records],
        seed,
        balance=how.balance,
        size=size,
        favour=lambda label: how.favour.get(label[0], 1.0),  # type: ignore[index]
    )


def wave_loader(
    run: RunConfig,
    data: PreparedData,
    samples: int,
    augment: AugmentConfig,
    process: Process,
    text: TextData | None = None,
) -> EpochLoader:
    """Batches of random windows {"wave": [B, samples], "id", "label"} of the training clips.

    text: the clips' captions, if batches are to have "pooled" [B, text_dim] too.
    """
    clips = clips_of(data, run.data, run.data.train_split)
    dataset = WaveDataset(data, clips, samples, augment, cache=run.data.cache, text=text)
    return train_loader(run, dataset, wave_sampler(run, dataset), process)


class FixedWaves:
    """The beginnings of the validation clips, in order, the same at every call."""

    def __init__(
        self,
        run: RunConfig,
        data: PreparedData,
        samples: int,
        clips: int,
        batch_size: int,
        text: TextData | None = None,
    ) -> None:
        found = spread(clips_of(data, run.data, run.data.valid_split), clips)
        dataset = WaveDataset(data, found, samples, cache=run.data.cache, text=text)
        sampler = FixedSampler(range(len(dataset)))
        self._loader = EpochLoader(dataset, sampler, batch_size, drop_last=False)

    def __iter__(self) -> Iterator[Batch]:
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
