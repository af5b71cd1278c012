"""Token decoders: text features to a grid of tokens.

Here: how tokens are drawn, and which decoder a config means. Nothing here loads torch, so that a
command line can show the settings at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import ConfigDict, Field

from diffsound.config import Config

if TYPE_CHECKING:
    from diffsound.decoder.ar import ARDecoder
    from diffsound.decoder.config import ARConfig, DiffsoundConfig
    from diffsound.decoder.diffsound import Diffsound

SamplerName = Literal["ancestral", "confidence", "official"]


class SamplingSettings(Config):
    """What a decoder cannot use, it refuses with an InputError."""

    model_config = ConfigDict(allow_inf_nan=False)

    sampler: SamplerName = Field(
        default="ancestral",
        description="ancestral, the paper's chain (algorithm 2); confidence, which unmasks in "
        "parallel; or official, the published code's chain.",
    )
    num_inference_steps: int | None = Field(
        default=None, ge=1, le=10_000, description="Sampling steps; fewer is faster."
    )
    stride: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="The paper's time stride, instead of a number of steps.",
    )
    guidance_scale: float = Field(
        default=1.0, ge=0, le=100, description="How closely to follow the text; 1 is off."
    )
    guided_share: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Share of the steps, from the first, that use guidance; the rest cost half.",
    )
    temperature: float = Field(
        default=1.0, ge=0, le=100, description="Below 1 safer, above 1 wilder."
    )
    truncation: float = Field(
        default=1.0, gt=0, le=1, description="Draw from the likeliest tokens of this total mass."
    )
    top_k: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Draw from the k likeliest tokens only."
    )
    remask: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of the drawn tokens, the least sure, that the sampler 'confidence' "
        "draws again at every step.",
    )


def build_decoder(config: DiffsoundConfig | ARConfig) -> Diffsound | ARDecoder:
    """A new decoder with random weights."""
    if config.kind == "ar":
        from diffsound.decoder.ar import ARDecoder

        return ARDecoder(config)
    from diffsound.decoder.diffsound import Diffsound

    return Diffsound(config)
