"""Augmentation of batches of mels and waves for stages that listen (SpecAugment, mixing)."""

from __future__ import annotations

import torch
from pydantic import Field, NonNegativeInt
from torch import Tensor

from diffsound.config import Config


class MaskConfig(Config):
    """SpecAugment (Park et al. 2019, arXiv:1904.08779): stretches of time and bands go silent.

    bands, frames: the widest stretch, drawn evenly from 0; band_masks, frame_masks: how many.
    """

    bands: NonNegativeInt = 10
    band_masks: NonNegativeInt = 2
    frames: NonNegativeInt = 24
    frame_masks: NonNegativeInt = 2


def mask_mels(
    mel: Tensor, how: MaskConfig, generator: torch.Generator, fill: Tensor | float = 0.0
) -> Tensor:
    """Mel [B, n_mels, L] with stretches replaced by `fill` (broadcast), drawn for each clip."""
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

    probability: of a clip being mixed with another; the target is mixed in the same share.
    """

    probability: float = Field(default=0.5, ge=0, le=1)


def mix_waves(
    wave: Tensor, target: Tensor, how: MixConfig, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Waves [B, samples] and targets [B, classes], some mixed with another of the batch.

    A share r of the target is a share r of what is heard: the amplitudes are set from the waves'
    levels, so that a loud clip does not drown a quiet one that the target gives the same weight.
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
