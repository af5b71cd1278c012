"""Mel-spectrogram to wave: MelGAN, the iSTFT vocoder, Griffin-Lim.

Here: which vocoder, and its sizes (the mel it hears is configured apart, as MelConfig); and long
mels cut into pieces that can be vocoded side by side, without a seam. A vocoder that hears only a
few frames to either side (`reach`) makes of a piece with that much of its neighbours around it what
it makes of it in the whole; the neighbours' part of the wave is thrown away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import torch
from pydantic import Field, field_validator
from torch import Tensor

from diffsound.audio.mel import MelConfig
from diffsound.config import MAX_LEVELS, Config, Count, Width

if TYPE_CHECKING:
    from diffsound.vocoder.griffin_lim import GriffinLim
    from diffsound.vocoder.istft import ISTFTVocoder
    from diffsound.vocoder.melgan import MelGAN

LONGEST = 432  # frames: 5 s, so that two cores share ten seconds
SHORTEST = 160  # frames: below it the neighbours would cost as much as is gained

Vocoder: TypeAlias = "MelGAN | ISTFTVocoder | GriffinLim"


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


def build_vocoder(config: MelGANConfig | ISTFTConfig | GriffinLimConfig, mel: MelConfig) -> Vocoder:
    """A vocoder for mels of `mel`: mel [B, n_mels, L] to wave [B, L * hop_length].

    Called as `vocoder(mel, generator)`, with a CPU generator for one that draws noise (none of
    these does; such a vocoder has no `reach`, since it must hear a mel in one piece).
    """
    match config:
        case MelGANConfig():
            from diffsound.vocoder.melgan import MelGAN

            return MelGAN(config, mel)
        case ISTFTConfig():
            from diffsound.vocoder.istft import ISTFTVocoder

            return ISTFTVocoder(config, mel)
        case GriffinLimConfig():
            from diffsound.vocoder.griffin_lim import GriffinLim

            return GriffinLim(config, mel)


@dataclass(frozen=True)
class Piece:
    """Frames start to end of a mel, heard from `first` to `last`."""

    start: int
    end: int
    first: int
    last: int


def cut(frames: int, reach: int) -> list[Piece]:
    """Pieces of about equal length, an even number of them if more than one.

    How they are cut depends on the length alone, never on the number of cores.
    """
    count = 2 * math.ceil(frames / (2 * LONGEST))
    if frames < 2 * SHORTEST:
        count = 1
    edges = [frames * place // count for place in range(count + 1)]
    return [
        Piece(start, end, max(0, start - reach), min(frames, end + reach))
        for start, end in pairwise(edges)
    ]


def vocode_pieces(
    mels: Sequence[Tensor],
    reach: int,
    hop_length: int,
    each: Callable[[Sequence[Tensor]], Sequence[Tensor]],
) -> list[Tensor]:
    """Mels [1, n_mels, L] -> waves [1, L * hop_length]. each: vocodes all pieces, one by one."""
    cuts = [cut(mel.shape[2], reach) for mel in mels]
    parts = [
        mel[:, :, piece.first : piece.last]
        for mel, pieces in zip(mels, cuts, strict=True)
        for piece in pieces
    ]
    waves = iter(each(parts))
    return [
        torch.cat([_kept(next(waves), piece, hop_length) for piece in pieces], dim=1)
        for pieces in cuts
    ]


def _kept(wave: Tensor, piece: Piece, hop_length: int) -> Tensor:
    """A piece's own part of the wave [1, samples] made of what it heard."""
    start, end = ((frame - piece.first) * hop_length for frame in (piece.start, piece.end))
    return wave[:, start:end]
