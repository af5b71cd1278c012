"""Which vocoder, and its sizes; the mel it hears is configured apart, as MelConfig."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from diffsound.config import MAX_LEVELS, Config, Count, Width


class MelGANConfig(Config):
    """MelGAN; the defaults are the published generator.

    The width is `base` at the wave's rate and doubles with every ratio towards the mel's. The
    ratios multiply to the hop length.
    """

    kind: Literal["melgan"] = "melgan"
    base: Width = 32
    residual_layers: Count = 3
    ratios: tuple[Count, ...] = Field(default=(8, 8, 2, 2), min_length=1, max_length=MAX_LEVELS)


class ISTFTConfig(Config):
    """A network at the mel's frame rate, and one inverse STFT.

    fits: updates that scale its magnitudes to those the mel tells.
    rounds: of Griffin-Lim after it, which make its phases fit each other.
    """

    kind: Literal["istft"] = "istft"
    width: Width = 256
    layers: Count = 6
    kernel: Count = 7
    expansion: Count = 3
    fits: int = Field(default=0, ge=0, le=64)
    rounds: int = Field(default=0, ge=0, le=64)

    @field_validator("kernel")
    @classmethod
    def _odd(cls, kernel: int) -> int:
        if kernel % 2 == 0:
            raise ValueError("the kernel must be odd, to be centred on its frame")
        return kernel


class GriffinLimConfig(Config):
    """Griffin-Lim: nothing to train."""

    kind: Literal["griffin_lim"] = "griffin_lim"
    iterations: int = Field(default=32, ge=0, le=1000)
    momentum: float = Field(default=0.99, ge=0, lt=1)
    seed: int = Field(default=0, ge=0, lt=2**63)


VocoderConfig = Annotated[
    MelGANConfig | ISTFTConfig | GriffinLimConfig, Field(discriminator="kind")
]
