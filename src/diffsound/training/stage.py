"""What a training stage is: modules that learn, and the losses they take turns at."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

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
    """One player's loss on a batch: the loop differentiates it and moves that player only.

    logs: named detached scalars; the loop averages them over steps and processes.
    """

    player: str
    loss: Tensor
    logs: Mapping[str, Tensor | float] = field(default_factory=dict)


@dataclass(frozen=True)
class Moment:
    """Where the run is when a batch is seen.

    generator: on the CPU, seeded from (seed, step, micro-step, process): the only randomness a
    loss may use besides torch's global one, which is seeded alike.
    """

    step: int
    epoch: int
    generator: torch.Generator

    @classmethod
    def at(cls, seed: int, step: int, epoch: int, micro: int, process: int) -> Moment:
        """The moment with its generator, torch's global randomness seeded alike."""
        words = np.random.SeedSequence([seed, step, micro, process]).generate_state(1, np.uint64)
        torch.manual_seed(int(words[0]))
        return cls(step, epoch, torch.Generator().manual_seed(int(words[0])))


class Stage(ABC):
    """Builds the modules of one stage and says what they learn from.

    The first player is the stage's product: it is averaged, validated and exported.
    """

    kind: ClassVar[str]
    metric: ClassVar[str]  # the validation figure that picks the best checkpoint; less is better

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
        """Called once the first weights are in place, before anything learns."""

    def compile(self) -> None:
        """Hand the players' work to torch.compile."""
        for player in self.players.values():
            player.module.compile()

    @property
    def product(self) -> nn.Module:
        return next(iter(self.players.values())).module

    @abstractmethod
    def turns(self, batch: Batch, moment: Moment) -> Iterator[Turn]:
        """The players' losses on a batch, in order; each is resumed after its player has moved."""

    @abstractmethod
    def validate(self, module: nn.Module) -> dict[str, float]:
        """Figures of `module` (the averaged product) on held-out clips, with fixed seeds."""

    def sample(self, module: nn.Module, folder: Path) -> None:  # noqa: B027
        """Write pictures and sounds that show how far `module` is; nothing by default."""

    def export_state(self, module: nn.Module) -> dict[str, Tensor]:
        """What is handed on of `module` (the averaged product)."""
        return module.state_dict()

    @abstractmethod
    def export_config(self) -> dict[str, Any]:
        """Every constant needed to build the product again, as JSON."""


@contextmanager
def frozen(module: nn.Module) -> Iterator[nn.Module]:
    """Let gradients flow through `module` to its input without gathering any for its weights."""
    learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        yield module
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[nn.Module]:
    """`module` in eval mode without gradients, put back as it was afterwards."""
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield module
    finally:
        module.train(was_training)
