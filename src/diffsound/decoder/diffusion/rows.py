"""Rows of a grid that are noised one after another.

The rows of a residual codec are stages of one description, coarse to fine. Noising the fine ones
first means that the reverse chain draws the coarse ones first, and every finer row given them. It
stays the paper's process: cells are noised independently of each other, only that each row reads
the schedule at a time of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from diffsound.decoder.diffusion.schedule import Time


def staggered(rows: int, order: float) -> Tensor:
    """When each row is noised, as shares of the chain: [rows, 2] (from, to), overlapping.

    The rows begin at even distances, the last row at 0; the first one begins at order/(1 + order),
    just when the last one is fully noised if order is 1.
    """
    if order <= 0:
        raise ValueError(f"order must be positive, got {order}")
    delay = torch.linspace(1, 0, rows, dtype=torch.float64) if rows > 1 else torch.zeros(1)
    start = order * delay.double() / (1 + order)
    return torch.stack((start, start + 1 / (1 + order)), dim=1)


def in_turn(shares: Sequence[float]) -> Tensor:
    """When each row is noised, as shares of the chain: [rows, 2] (from, to), without overlap.

    shares: how much of the chain each row has, first row first, in any unit. What has a large
    share is drawn in many steps, and learned most.
    """
    sizes = torch.tensor(list(shares), dtype=torch.float64)
    if not len(sizes) or (sizes <= 0).any():
        raise ValueError("every row needs a share above 0")
    sizes = sizes / sizes.sum()
    end = sizes.flip(0).cumsum(0).flip(0).clamp(max=1.0)
    start = torch.cat((end[1:], torch.zeros(1, dtype=torch.float64)))
    return torch.stack((start, end), dim=1)


def row_times(t: Time, windows: Tensor, steps: int) -> Tensor:
    """The time in 0..T at which each row reads the schedule: t [...] -> int64 [..., rows].

    windows: [rows, 2] from `staggered` or `in_turn`. All rows are clean at t = 0 and fully noised
    at t = T.
    """
    share = torch.as_tensor(t)[..., None].double() / steps
    start, end = windows.to(share.device).unbind(1)
    return ((share - start) / (end - start) * steps).clamp(0, steps).round().long()


def rows_in_turn(times: Tensor) -> Tensor:
    """The row being drawn at these times of rows [B, F'] and the one after it: int64 [B, 2].

    Rows before it are clean (time 0) and rows after it fully noised. The last row is its own
    successor.
    """
    current = (times == 0).sum(1).clamp(max=times.shape[1] - 1)
    return torch.stack((current, (current + 1).clamp(max=times.shape[1] - 1)), dim=1)
