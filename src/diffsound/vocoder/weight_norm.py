"""Weight-normalised convolutions with the parameter names of the published checkpoints.

torch's own parametrization names them differently, and its classic function is deprecated.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


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
