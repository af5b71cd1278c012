"""MelGAN's generator as published (Kumar et al., 2019): the paper's vocoder."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor, nn

from diffsound.audio.mel import MelConfig
from diffsound.audio.stft import reflect_pad
from diffsound.errors import ConfigError
from diffsound.vocoder.config import MelGANConfig
from diffsound.vocoder.weight_norm import (
    WeightNormConv1d,
    WeightNormConvTranspose1d,
    fuse_weight_norm,
)

_SLOPE = 0.2


class MelGAN(nn.Module):
    """Mel [B, n_mels, L] to wave [B, L * hop_length] in [-1, 1].

    The numbering of `model` is the published one, so that its weights load as they are.
    """

    reach: int | None = None  # see pieces.py; it is run in one piece

    def __init__(self, config: MelGANConfig, mel: MelConfig) -> None:
        super().__init__()
        if math.prod(config.ratios) != mel.hop_length:
            raise ConfigError(
                f"MelGAN's ratios {list(config.ratios)} multiply to {math.prod(config.ratios)}, "
                f"but the mel's hop_length is {mel.hop_length}"
            )
        self.config = config
        self.mel_config = mel
        width = config.base * 2 ** len(config.ratios)
        layers: list[nn.Module] = [ReflectPad(3), WeightNormConv1d(mel.n_mels, width, 7)]
        for ratio in config.ratios:
            layers += [nn.LeakyReLU(_SLOPE), _upsampler(width, ratio)]
            width //= 2
            layers += [DilatedBlock(width, 3**index) for index in range(config.residual_layers)]
        layers += [nn.LeakyReLU(_SLOPE), ReflectPad(3), WeightNormConv1d(width, 1, 7), nn.Tanh()]
        self.model = nn.Sequential(*layers)

    def forward(self, mel: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Mel [B, n_mels, L] to wave [B, L * hop_length]."""
        return self.model(mel).squeeze(1)

    def fuse(self) -> Self:
        """Fold the weight normalisation away, in place: for inference only."""
        fuse_weight_norm(self)
        return self


class DilatedBlock(nn.Module):
    """A dilated and a pointwise convolution beside a pointwise shortcut: [B, width, n] kept."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.LeakyReLU(_SLOPE),
            ReflectPad(dilation),
            WeightNormConv1d(width, width, 3, dilation=dilation),
            nn.LeakyReLU(_SLOPE),
            WeightNormConv1d(width, width, 1),
        )
        self.shortcut = WeightNormConv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.block(x)


class ReflectPad(nn.Module):
    """Reflection padding of both ends that, unlike torch's, takes inputs of any length."""

    def __init__(self, amount: int) -> None:
        super().__init__()
        self.amount = amount

    def forward(self, x: Tensor) -> Tensor:
        return reflect_pad(x, self.amount)


def _upsampler(width: int, ratio: int) -> WeightNormConvTranspose1d:
    """Halve the width and multiply the length by exactly `ratio`."""
    odd = ratio % 2
    return WeightNormConvTranspose1d(
        width,
        width // 2,
        kernel_size=2 * ratio,
        stride=ratio,
        padding=ratio // 2 + odd,
        output_padding=odd,
    )
