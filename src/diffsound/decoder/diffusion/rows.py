"""Rows of a grid that are noised one after another.

The rows of a residual codec are stages of one description, coarse to fine. Noising the fine ones
first means that the reverse chain draws the coarse ones first, and every finer row given them. It
stays the paper's process: cells are noised independently of each other, only that each row reads
the schedule at a time of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diffsound.decoder.diffusion.schedule import Time


def row_times(t: Time, rows: int, steps: int, order: float) -> Tensor:
    """The time in 0..T at which each row reads the schedule: t [...] -> int64 [..., rows].

    order 0: all rows at t. Above 0 the rows start one after another, the last row first; the first
    row starts at T·order/(1 + order), just when the last one ends if order is 1. All are clean at
    t = 0 and fully noised at t = T.
    """
    if order < 0:
        raise ValueError(f"order must not be negative, got {order}")
    share = torch.as_tensor(t)[..., None].double() / steps
    delay = torch.linspace(1, 0, rows, dtype=torch.float64) if rows > 1 else torch.zeros(1)
    level = (share * (1 + order) - order * delay.to(share.device)).clamp(0, 1)
    return (level * steps).round().long()
