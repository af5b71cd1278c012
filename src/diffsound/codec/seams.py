"""The edges between columns: how much a decoded mel steps there, and taking the steps out.

Every column is coded for itself, so that what one lacks the next may have too much of: levels and
tones step from column to column, and a steady sound flutters at the columns' rate. A step that the
codes do not ask for is taken out like the blocks of a video: half of it from either side, falling
to nothing within a few frames. What is left is the mean over the edge, and all texture. Where a
sound begins or ends nothing is taken out: there a step belongs to it, and covers what does not.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffsound.codec.config import SeamsConfig

SIDE = 3  # frames on either side whose means make a step; texture averages out
HEARD = 0.15  # of the mel's range; below it nothing is heard


class Seams(nn.Module):
    """mel [B, n_mels, L' · stride] → the same without its columns' steps.

    A small network looks at both columns of every edge, finely near the edge and coarsely far from
    it, and says for each band how much of a step there should not be.
    """

    near: Tensor  # [stride, segments], means over 1, 1, 2, 4, … frames from the edge on
    fall: Tensor  # [stride], 1 at the edge, 0 from `reach` frames on

    def __init__(self, config: SeamsConfig, stride: int, n_mels: int) -> None:
        super().__init__()
        self.stride = stride
        self.steady = 2 * config.steady  # mels come in [-1, 1]
        near = _segments(stride)
        distance = (torch.arange(stride, device="cpu") + 0.5) / min(config.reach, stride)
        fall = 0.5 + 0.5 * torch.cos(torch.pi * distance.clamp(max=1.0))
        self.register_buffer("near", near, persistent=False)
        self.register_buffer("fall", fall, persistent=False)
        self.first = nn.Linear(2 * n_mels * near.shape[1], config.width)
        self.second = nn.Linear(config.width, config.width)
        self.last = nn.Linear(config.width, n_mels)
        nn.init.zeros_(self.last.weight)  # changes nothing before it has learned
        nn.init.zeros_(self.last.bias)

    def forward(self, mel: Tensor) -> Tensor:
        columns = mel.unflatten(2, (-1, self.stride))  # [B, n_mels, L', stride]
        before, after = columns[:, :, :-1] @ self.near.flip(0), columns[:, :, 1:] @ self.near
        seen = torch.cat([before, after], dim=3).transpose(1, 2).flatten(2)  # [B, L' - 1, …]
        x = F.gelu(self.first(seen))
        x = x + F.gelu(self.second(x))
        change = columns.mean(3).diff(dim=2).abs().mean(1, keepdim=True)  # [B, 1, L' - 1]
        going_on = torch.exp(-(change / self.steady).square())
        excess = (self.last(x).transpose(1, 2) * going_on)[..., None]  # [B, n_mels, L' - 1, 1]
        raised = F.pad(excess * self.fall.flip(0), (0, 0, 0, 1))
        lowered = F.pad(excess * self.fall, (0, 0, 1, 0))
        return (columns + raised - lowered).flatten(2)


def _segments(stride: int) -> Tensor:
    """[stride, segments]: weights of the means over 1, 1, 2, 4, … frames, the last cut to fit."""
    ends = [1]
    while ends[-1] < stride:
        ends.append(min(stride, 2 * ends[-1]))
    weights = torch.zeros(stride, len(ends))
    for place, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        weights[start:end, place] = 1 / (end - start)
    return weights


def seam_loss(mel: Tensor, target: Tensor, stride: int) -> Tensor:
    """Mean squared difference between the steps at the edges of mels [B, n_mels, L]."""
    return F.mse_loss(_steps(mel, stride), _steps(target, stride))


def _steps(mel: Tensor, stride: int) -> Tensor:
    """What follows each edge less what comes before it: [B, n_mels, L] → [B, n_mels, L' - 1]."""
    side = min(SIDE, stride)
    columns = mel[..., : mel.shape[2] // stride * stride].unflatten(2, (-1, stride))
    return columns[:, :, 1:, :side].mean(3) - columns[:, :, :-1, -side:].mean(3)


def changes(mel: Tensor, stride: int) -> Tensor:
    """How much mels [B, n_mels, L] change from frame to frame where they are heard, [2, 2] float64.

    Sum and number of the changes across edges, then of those within columns. `seam_ratio` reads it;
    those of several mels are added.
    """
    change = mel.diff(dim=2).abs().mean(1).double()  # [B, L - 1]
    heard = mel.amax(1) > HEARD
    heard = heard[:, 1:] & heard[:, :-1]
    edge = torch.arange(1, mel.shape[2], device=mel.device) % stride == 0
    found = [(change * chosen, chosen) for chosen in (heard & edge, heard & ~edge)]
    return torch.stack([torch.stack([values.sum(), chosen.sum()]) for values, chosen in found])


def seam_ratio(found: Tensor) -> float:
    """Mean change across edges to that within columns, of `changes`; 1 where edges do not show."""
    edge, inner = found[:, 0] / found[:, 1].clamp_min(1)
    return float(edge / inner.clamp_min(1e-12))
