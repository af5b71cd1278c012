"""An exponential moving average of a module's weights."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class Ema:
    """Keeps an averaged copy of a module: what learns is averaged, all else copied.

    Buffers are copied because they are averages already (an EMA codebook, batch-norm statistics)
    or constants; frozen parameters because an average of -0 is 0, and tokens have a fingerprint of
    their codec's bits.
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
        averaged: list[Tensor] = []
        current: list[Tensor] = []
        for kept, parameter in zip(self.module.parameters(), module.parameters(), strict=True):
            if parameter.requires_grad:
                averaged.append(kept)
                current.append(parameter.detach())
            else:
                kept.copy_(parameter)
        if averaged:
            torch._foreach_lerp_(averaged, current, 1.0 - decay)
        for own, buffer in zip(self.module.buffers(), module.buffers(), strict=True):
            own.copy_(buffer)
