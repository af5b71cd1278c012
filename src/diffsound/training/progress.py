"""Where a run is and how far it has to go."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from diffsound.training.config import TrainConfig
from diffsound.training.engine import Accelerator
from diffsound.training.stage import BatchSource


@dataclass
class Position:
    """Where a run is: all of its state that is not a tensor."""

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
    """How long a run is: by steps, epochs and the clock, whichever ends first."""

    def __init__(self, config: TrainConfig, loader: BatchSource, accelerator: Accelerator) -> None:
        self.config, self.loader, self.accelerator = config, loader, accelerator
        self._sizes: dict[int, int] = {}  # of the epoch asked for last

    @property
    def steps(self) -> int | None:
        """Steps in all, None if only the clock ends the run; epochs are taken to be of one size."""
        config = self.config
        limits = [config.max_steps] if config.max_steps else []
        if config.max_epochs:
            batches = self.loader.batches_in(0) * config.max_epochs
            limits.append(max(1, batches // config.accumulation))
        return min(limits) if limits else None

    def done(self, position: Position) -> float:
        """How much of the run is done, 0 to 1."""
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
        """Epochs done, with the part done of the one at hand (a curriculum's differ in size)."""
        if position.epoch not in self._sizes:
            self._sizes = {position.epoch: max(1, self.loader.batches_in(position.epoch))}
        return position.epoch + min(1.0, position.batch / self._sizes[position.epoch])

    def validation_due(self, position: Position, epochs_before: int) -> bool:
        """Whether to validate after the step that ended at `position`.

        epochs_before: whole epochs that were done before that step.
        """
        steps, every = self.config.validate_steps, self.config.validate_epochs
        if steps and position.step % steps == 0:
            return True
        if not every:
            return False
        return int(self.epochs(position)) // every > epochs_before // every
