"""What a training stage is: the modules that learn and the losses they take turns at."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, model_validator
from torch import Tensor, nn

from diffsound.config import Config
from diffsound.errors import ConfigError
from diffsound.training.config import Betas, TrainConfig

Batch = dict[str, Any]


class BatchSource(Protocol):
    """What the loop needs of a loader: batches as a pure function of (epoch, start)."""

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]: ...

    def batches_in(self, epoch: int) -> int: ...


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
    loader: BatchSource
    device: torch.device

    def __init__(self) -> None:
        self.players = {}
        self.prepared: dict[str, nn.Module] = {}
        self.device = torch.device("cpu")

    def attach(self, prepared: Mapping[str, nn.Module], device: torch.device) -> None:
        """Take the players as wrapped for many processes and mixed precision.

        A player learns through `self.prepared[name](…)`; the bare module in `self.players` is for
        passes in which it does not learn.
        """
        self.prepared = dict(prepared)
        self.device = device

    def ready(self) -> None:  # noqa: B027
        """Called when the first weights are in place, before training."""

    def shard(self, module: nn.Module, device: str) -> None:
        """Divide a player, or the product's average, over the processes (see engine.shard)."""
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
