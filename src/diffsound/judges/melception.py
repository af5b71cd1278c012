"""Melception (section VI-B): InceptionV3 over a mel as a one-channel image.

The two max-pools of its stem are left out, as the paper says, so that higher layers keep the
spectrogram's resolution; the ones inside the two reduction blocks belong to their branches and
stay. Everything else is Szegedy et al. 2016 (arXiv:1512.00567), whose figure numbers are below.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from diffsound.config import Config, Weight

# The smallest side the unpadded convolutions and the two reductions leave anything of.
SMALLEST_SIDE = 23


class MelceptionConfig(Config):
    """The paper's classifier, 21.8 M parameters before its head.

    auxiliary: weight of the side head's loss in training; 0 builds none.
    """

    kind: Literal["melception"] = "melception"
    dropout: float = Field(default=0.5, ge=0, lt=1)
    auxiliary: Weight = 0.0

    @property
    def feature_dim(self) -> int:
        return 2048


class Melception(nn.Module):
    """Standardised mel [B, n_mels, L] to features over time [B, 2048, L']."""

    def __init__(self, config: MelceptionConfig, n_mels: int) -> None:
        super().__init__()
        self.smallest_bands = max(0, SMALLEST_SIDE - n_mels)
        self.stem = nn.Sequential(
            _conv(1, 32, 3, stride=2),
            _conv(32, 32, 3),
            _conv(32, 64, 3, padding=1),
            _conv(64, 80, 1),
            _conv(80, 192, 3),
        )
        self.fine = nn.Sequential(
            _FigureFive(192, pooled=32), _FigureFive(256, pooled=64), _FigureFive(288, pooled=64)
        )
        self.middle = nn.Sequential(
            _ReduceOnce(288),
            _FigureSix(768, 128),
            _FigureSix(768, 160),
            _FigureSix(768, 160),
            _FigureSix(768, 192),
        )
        self.coarse = nn.Sequential(_ReduceTwice(768), _FigureSeven(1280), _FigureSeven(2048))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, mel: Tensor) -> Tensor:
        """[B, n_mels, L] to [B, 2048, L']."""
        return self.finish(self.middle_of(mel))

    def middle_of(self, mel: Tensor) -> Tensor:
        """[B, n_mels, L] to the 768 channels the side head reads, [B, 768, F'', L'']."""
        short = max(0, SMALLEST_SIDE - mel.shape[2])
        image = F.pad(mel[:, None], (0, short, 0, self.smallest_bands))
        return self.middle(self.fine(self.stem(image)))

    def finish(self, middle: Tensor) -> Tensor:
        """[B, 768, F'', L''] to [B, 2048, L']."""
        return self.coarse(middle).mean(dim=2)


class SideHead(nn.Module):
    """The auxiliary classifier on [B, 768, F'', L'']; any size is first pooled to 5 × 5."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.AdaptiveAvgPool2d(5), _conv(768, 128, 1), _conv(128, 768, 5), nn.Flatten()
        )
        self.head = nn.Linear(768, classes)

    def forward(self, middle: Tensor) -> Tensor:
        """[B, 768, F'', L''] to logits [B, classes]."""
        return self.head(self.body(middle))


def _conv(
    inputs: int,
    outputs: int,
    kernel: int | tuple[int, int],
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False),
        nn.BatchNorm2d(outputs, eps=1e-3),
        nn.ReLU(inplace=True),
    )


def _average() -> nn.AvgPool2d:
    return nn.AvgPool2d(3, stride=1, padding=1)


class _Branches(nn.Module):
    """Branches side by side, their channels concatenated."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class _FigureFive(_Branches):
    """1×1, 5×5, double 3×3 and pooled branches: 224 + pooled channels."""

    def __init__(self, inputs: int, pooled: int) -> None:
        super().__init__(
            _conv(inputs, 64, 1),
            nn.Sequential(_conv(inputs, 48, 1), _conv(48, 64, 5, padding=2)),
            nn.Sequential(
                _conv(inputs, 64, 1), _conv(64, 96, 3, padding=1), _conv(96, 96, 3, padding=1)
            ),
            nn.Sequential(_average(), _conv(inputs, pooled, 1)),
        )


class _ReduceOnce(_Branches):
    """Halves both sides; 480 + inputs channels."""

    def __init__(self, inputs: int) -> None:
        super().__init__(
            _conv(inputs, 384, 3, stride=2),
            nn.Sequential(
                _conv(inputs, 64, 1), _conv(64, 96, 3, padding=1), _conv(96, 96, 3, stride=2)
            ),
            nn.MaxPool2d(3, stride=2),
        )


class _FigureSix(_Branches):
    """7×7 factored into 1×7 and 7×1, once and twice; 768 channels, `inner` inside."""

    def __init__(self, inputs: int, inner: int) -> None:
        row, column = (1, 7), (7, 1)
        along, across = (0, 3), (3, 0)
        super().__init__(
            _conv(inputs, 192, 1),
            nn.Sequential(
                _conv(inputs, inner, 1),
                _conv(inner, inner, row, padding=along),
                _conv(inner, 192, column, padding=across),
            ),
            nn.Sequential(
                _conv(inputs, inner, 1),
                _conv(inner, inner, column, padding=across),
                _conv(inner, inner, row, padding=along),
                _conv(inner, inner, column, padding=across),
                _conv(inner, 192, row, padding=along),
            ),
            nn.Sequential(_average(), _conv(inputs, 192, 1)),
        )


class _ReduceTwice(_Branches):
    """Halves both sides again; 512 + inputs channels."""

    def __init__(self, inputs: int) -> None:
        super().__init__(
            nn.Sequential(_conv(inputs, 192, 1), _conv(192, 320, 3, stride=2)),
            nn.Sequential(
                _conv(inputs, 192, 1),
                _conv(192, 192, (1, 7), padding=(0, 3)),
                _conv(192, 192, (7, 1), padding=(3, 0)),
                _conv(192, 192, 3, stride=2),
            ),
            nn.MaxPool2d(3, stride=2),
        )


class _FigureSeven(_Branches):
    """Branches that end in 1×3 beside 3×1: 2048 channels."""

    def __init__(self, inputs: int) -> None:
        super().__init__(
            _conv(inputs, 320, 1),
            nn.Sequential(_conv(inputs, 384, 1), _split(384)),
            nn.Sequential(_conv(inputs, 448, 1), _conv(448, 384, 3, padding=1), _split(384)),
            nn.Sequential(_average(), _conv(inputs, 192, 1)),
        )


def _split(width: int) -> _Branches:
    return _Branches(
        _conv(width, width, (1, 3), padding=(0, 1)), _conv(width, width, (3, 1), padding=(1, 0))
    )
