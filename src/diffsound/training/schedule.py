"""The learning rate as a pure function of where the run is, so that resuming needs no state."""

from __future__ import annotations

import math

from diffsound.training.config import TrainConfig


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
