"""Where a run is, how far it has to go, and the learning rate there: all without hidden state."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from diffsound.training.config import TrainConfig
from diffsound.training.stage import BatchSource

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass
class Position:
    """Everything about a run's progress that is not a tensor; saved with every checkpoint."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # batches done in this epoch
    seconds: float = 0.0  # spent training, over all sessions of the run
    skipped: int = 0
    best: float | None = None
    best_step: int | None = None
    stale: int = 0  # validations since the best one
    metrics: dict[str, float] = field(default_factory=dict)


class Span:
    """The length of a run in steps, epochs or minutes, whichever ends first."""

    def __init__(self, config: TrainConfig, loader: BatchSource, accelerator: Accelerator) -> None:
        self.config, self.loader, self.accelerator = config, loader, accelerator
        self._sizes: dict[int, int] = {}  # of the epoch asked for last

    @property
    def steps(self) -> int | None:
        """Total steps, None if only the clock ends the run; assumes epochs of equal size."""
        config = self.config
        limits = [config.max_steps] if config.max_steps else []
        if config.max_epochs:
            batches = self.loader.batches_in(0) * config.max_epochs
            limits.append(max(1, batches // config.accumulation))
        return min(limits) if limits else None

    def done(self, position: Position) -> float:
        """The share of the run that is done, 0 to 1."""
        config = self.config
        shares = [0.0]
        if config.max_steps:
            shares.append(position.step / config.max_steps)
        if config.max_epochs:
            shares.append(self.epochs(position) / config.max_epochs)
        if config.max_minutes:
            seconds = torch.tensor(position.seconds, device=self.accelerator.device)
            if self.accelerator.num_processes > 1:
                seconds = self.accelerator.reduce(seconds, "mean")
            shares.append(float(seconds) / (60.0 * config.max_minutes))
        return max(shares)

    def epochs(self, position: Position) -> float:
        """Epochs done, the current one in part (a curriculum's epochs differ in size)."""
        if position.epoch not in self._sizes:
            self._sizes = {position.epoch: max(1, self.loader.batches_in(position.epoch))}
        return position.epoch + min(1.0, position.batch / self._sizes[position.epoch])

    def validation_due(self, position: Position, epochs_before: int) -> bool:
        """Whether to validate after the step that ended at `position`.

        epochs_before: whole epochs done before that step.
        """
        steps, every = self.config.validate_steps, self.config.validate_epochs
        if steps and position.step % steps == 0:
            return True
        if not every:
            return False
        return int(self.epochs(position)) // every > epochs_before // every


def lr_factor(config: TrainConfig, step: int, progress: float) -> float:
    """Share of the base learning rate at `step` (from 0) when `progress` (0..1) of the run is done.

    Warm-up is linear over `warmup_steps` and multiplies the schedule.
    """
    progress = min(max(progress, 0.0), 1.0)
    floor = config.final_lr
    if config.schedule == "constant":
        factor = 1.0
    elif config.schedule == "linear":
        factor = 1.0 - (1.0 - floor) * progress
    else:
        factor = floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))
    if step < config.warmup_steps:
        factor *= (step + 1) / config.warmup_steps
    return factor
