"""An exponential moving average of a module's weights."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class Ema:
    """Keeps an averaged copy of a module: parameters are averaged, buffers copied.

    Buffers are copied because they are averages already (an EMA codebook, batch-norm statistics)
    or constants.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.module = copy.deepcopy(module).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, module: nn.Module, step: int) -> None:
        """Move towards `module` after optimizer step `step` (from 1).

        The decay grows from nothing, (1 + n) / (10 + n), so that the random start is forgotten
        within the first steps instead of after 1 / (1 - decay) of them.
        """
        decay = min(self.decay, (1 + step) / (10 + step))
        averaged: list[Tensor] = list(self.module.parameters())
        current: list[Tensor] = [parameter.detach() for parameter in module.parameters()]
        torch._foreach_lerp_(averaged, current, 1.0 - decay)
        for kept, buffer in zip(self.module.buffers(), module.buffers(), strict=True):
            kept.copy_(buffer)
