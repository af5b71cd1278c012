"""MelGAN's generator as published (Kumar et al., 2019): the paper's vocoder, and its weights.

Its weight-normalised convolutions have the parameter names of the published checkpoints: torch's
own parametrization names them differently, and its classic function is deprecated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from diffsound.audio.mel import MelConfig, reflect_pad
from diffsound.errors import BundleError, ConfigError
from diffsound.vocoder import MelGANConfig
from diffsound.weights import check_shapes

_SLOPE = 0.2


class _WeightNorm(nn.Module):
    """weight = weight_g * weight_v / |weight_v|, the norm over all axes but the first."""

    weight: Tensor
    weight_g: Tensor
    weight_v: Tensor

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        weight = self.weight.detach()
        del self.weight
        self.weight_g = nn.Parameter(_norm(weight))
        self.weight_v = nn.Parameter(weight)

    def effective_weight(self) -> Tensor:
        """The weight the convolution applies."""
        if "weight" in self._parameters:
            return self.weight
        return self.weight_v * (self.weight_g / _norm(self.weight_v))

    def fuse(self) -> None:
        """Keep the product only: for inference, and for good."""
        if "weight" in self._parameters:
            return
        weight = self.effective_weight().detach()
        del self.weight_g, self.weight_v
        self.weight = nn.Parameter(weight)


class WeightNormConv1d(_WeightNorm, nn.Conv1d):
    """nn.Conv1d, weight-normalised."""

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.effective_weight(), self.bias)


class WeightNormConvTranspose1d(_WeightNorm, nn.ConvTranspose1d):
    """nn.ConvTranspose1d, weight-normalised over its input channels."""

    padding: tuple[int, ...]

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return functional.conv_transpose1d(
            x,
            self.effective_weight(),
            self.bias,
            stride=self.stride,
            padding=self.padding,
            output_padding=self.output_padding,
        )


def fuse_weight_norm(module: nn.Module) -> None:
    """Fuse every weight-normalised convolution of this file within `module`, in place."""
    for part in module.modules():
        if isinstance(part, _WeightNorm):
            part.fuse()


def _norm(weight: Tensor) -> Tensor:
    return torch.linalg.vector_norm(weight, dim=(1, 2), keepdim=True)


class MelGAN(nn.Module):
    """Mel [B, n_mels, L] to wave [B, L * hop_length] in [-1, 1].

    The numbering of `model` is the published one, so that its weights load as they are.
    """

    reach: int | None = None  # see `vocoder.cut`; it is run in one piece

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


def melgan_from_published(
    state_dict: Mapping[str, Tensor], mel: MelConfig | None = None
) -> tuple[MelGANConfig, dict[str, Tensor]]:
    """The config of a published MelGAN generator, and its weights for `MelGAN` of that config.

    `mel` (the published one by default) is what the weights are meant to hear. Weights of another
    network, or of another mel, raise a BundleError.
    """
    mel = mel or MelConfig()
    weights = {name: value for name, value in state_dict.items() if name.startswith("model.")}
    config = _read_config(weights)
    try:
        expected = MelGAN(config, mel).state_dict()
    except ConfigError as error:
        raise BundleError(f"this MelGAN does not fit the mel: {error}") from error
    check_shapes(expected, weights, "this MelGAN")
    return config, {name: weights[name].float() for name in expected}


def _read_config(weights: Mapping[str, Tensor]) -> MelGANConfig:
    """Sizes from shapes: an upsampler's kernel is twice its ratio, and the last width is `base`."""
    convolutions = {
        int(match[1]): value
        for name, value in weights.items()
        if (match := re.fullmatch(r"model\.(\d+)\.weight_v", name)) and value.ndim == 3
    }
    blocks = {match[1] for name in weights if (match := re.match(r"model\.(\d+)\.block\.", name))}
    ordered = [value for _, value in sorted(convolutions.items())]
    upsamplers = ordered[1:-1]
    if not upsamplers or not blocks or len(blocks) % len(upsamplers):
        raise BundleError("these are not the weights of a MelGAN generator")
    return MelGANConfig(
        base=ordered[-1].shape[1],
        residual_layers=len(blocks) // len(upsamplers),
        ratios=tuple(value.shape[2] // 2 for value in upsamplers),
    )
