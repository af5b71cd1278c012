"""What the adversarial stages share: when the discriminator comes in, and how strongly."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, model_validator

from diffsound.config import Config
from diffsound.training.config import Betas
from diffsound.training.stage import Moment


class AdversarialSchedule(Config):
    """The discriminator sleeps until start_steps or start_epochs, then its weight rises.

    ramp_steps: over which the weights rise to their full value, since a discriminator that has
        just begun knows nothing worth following.
    lr, betas: of the discriminator's own optimizer; lr None takes the run's.
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
        """0 while the discriminator sleeps, 1 when its weights are full."""
        if moment.step < self.start_steps or moment.epoch < self.start_epochs:
            return 0.0
        if not self.ramp_steps:
            return 1.0
        return min(1.0, (moment.step - self.start_steps + 1) / self.ramp_steps)
