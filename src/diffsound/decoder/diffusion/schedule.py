"""Noise schedules: how much of a token survives, is replaced or is masked by time t.

The paper's three transition matrices (eq. 13, 16, 19) are one family. At time t a token

- is unchanged with probability ᾱ_t ("stay"),
- has become the mask with probability γ̄_t ("masked"),
- has been redrawn uniformly from the K codes otherwise, β̄_t = (1 − ᾱ_t − γ̄_t)/K for each.

The uniform matrix has γ̄ = 0; the mask matrix has β̄ = 0 (the paper writes β for its "stay");
the mask-and-uniform matrix has both. Two vectors of T + 1 numbers therefore hold everything, and
no K×K matrix is ever built. Time runs from 0 (clean) to T; the mask is index K.

Rows may be noised one after another.

The rows of a residual codec are stages of one description, coarse to fine. Noising the fine ones
first means that the reverse chain draws the coarse ones first, and every finer row given them. It
stays the paper's process: cells are noised independently of each other, only that each row reads
the schedule at a time of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Transition = Literal["uniform", "mask", "mask_uniform"]

# A time: one for the whole batch, or one per leading index (typically [B]) of the tokens.
Time = int | Tensor


def spread(values: Tensor, cells: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers per time, [] or [B], shaped to broadcast over cells [B, ...] and on their device."""
    return values.to(cells.device, dtype).reshape(values.shape + (1,) * (cells.ndim - values.ndim))


class Coefficients(NamedTuple):
    """Entries of one transition matrix: α (stay), β (each code) and γ (mask), of equal shape."""

    stay: Tensor
    uniform: Tensor
    masked: Tensor

    def over(self, cells: Tensor, dtype: torch.dtype) -> Coefficients:
        """The same numbers spread over cells."""
        return Coefficients(*(spread(values, cells, dtype) for values in self))


@dataclass(frozen=True, eq=False)
class Schedule:
    """Cumulative probabilities of one forward process.

    stay, masked: [T + 1] float64, ᾱ_t and γ̄_t, entry 0 clean. They stay on the CPU, where ratios
    of tiny numbers are exact enough; what reaches a device is a handful of scalars per step.
    """

    transition: Transition
    codebook_size: int
    stay: Tensor
    masked: Tensor

    def __post_init__(self) -> None:
        if self.codebook_size < 1:
            raise ValueError(f"codebook_size must be at least 1, got {self.codebook_size}")
        for name in ("stay", "masked"):
            values = getattr(self, name)
            if values.ndim != 1 or len(values) < 2 or values.dtype != torch.float64:
                raise ValueError(f"{name} must be a float64 vector of T + 1 ≥ 2 entries")
        if len(self.stay) != len(self.masked):
            raise ValueError("stay and masked must have the same length")
        if self.stay[0] != 1 or self.masked[0] != 0:
            raise ValueError("time 0 must be clean: stay 1, masked 0")
        if (self.stay[:-1] <= 0).any() or (self.masked[:-1] >= 1).any():
            raise ValueError("only the last time may lose every token")
        # Each one-step matrix must be a matrix of probabilities: α, γ, Kβ ≥ 0.
        kept = 1 - self.masked
        surviving = self.stay[:-1] / kept[:-1] - self.stay[1:] / kept[1:].clamp_min(1e-300)
        tolerance = 1e-9  # of rounding in 1 − masked where little is left
        if (
            (self.stay.diff() > tolerance).any()
            or (self.masked.diff() < -tolerance).any()
            or (surviving < -tolerance).any()
        ):
            raise ValueError("stay must fall, masked must rise, and stay/(1 − masked) must fall")

    @property
    def steps(self) -> int:
        """T, the last time."""
        return len(self.stay) - 1

    @property
    def mask_index(self) -> int:
        """K, the index of the mask token."""
        return self.codebook_size

    def between(self, t: Time, s: Time) -> Coefficients:
        """The transition from time s to time t > s (or s = t = 0), float64 on the CPU.

        α_{t|s} = ᾱ_t/ᾱ_s, 1 − γ_{t|s} = (1 − γ̄_t)/(1 − γ̄_s), Kβ_{t|s} = 1 − α_{t|s} − γ_{t|s}.
        """
        later, earlier = torch.as_tensor(t).cpu(), torch.as_tensor(s).cpu()
        if ((earlier < 0) | (later > self.steps) | ((earlier >= later) & (later > 0))).any():
            raise ValueError(f"times must keep 0 ≤ s < t ≤ {self.steps}, got t={t}, s={s}")
        stay = self.stay[later] / self.stay[earlier]
        kept = (1 - self.masked[later]) / (1 - self.masked[earlier])
        if self.transition == "mask":
            # Exactly zero, not the rounding error of kept − stay: the posterior depends on it.
            return Coefficients(stay, torch.zeros_like(stay), 1 - stay)
        return Coefficients(stay, (kept - stay).clamp_min(0) / self.codebook_size, 1 - kept)

    def cumulative(self, t: Time) -> Coefficients:
        """ᾱ_t, β̄_t, γ̄_t: the transition from the clean tokens to time t."""
        return self.between(t, torch.zeros_like(torch.as_tensor(t)))

    def stationary(self) -> Tensor:
        """p(x_T) over the K codes and the mask, [K + 1] float64 (eq. 15, 18, 21)."""
        masked = self.masked[-1:]
        return torch.cat([((1 - masked) / self.codebook_size).expand(self.codebook_size), masked])


def linear_schedule(
    steps: int, codebook_size: int, transition: Transition, gamma_end: float = 0.9
) -> Schedule:
    """The paper's schedule: ᾱ falls linearly from 1 to 0, γ̄ rises linearly to its end value.

    The end value is 0 for the uniform matrix, 1 for the mask matrix and `gamma_end` for both
    together (0.9 in the paper). The ends are exact, so x_T keeps nothing of x_0.
    """
    return _from_level(_level(steps), codebook_size, transition, gamma_end)


def cosine_schedule(
    steps: int, codebook_size: int, transition: Transition, gamma_end: float = 0.9
) -> Schedule:
    """As the linear schedule, with the share of lost tokens following Nichol and Dhariwal's cosine.

    It loses tokens slowly at both ends; the offset 0.008 is theirs and keeps the first steps
    from being no steps at all.
    """
    offset = 0.008
    survived = torch.cos((_level(steps) + offset) / (1 + offset) * math.pi / 2) ** 2
    level = 1 - survived / survived[0]
    level[-1] = 1.0  # cos²(π/2) is 0 but for rounding, and the end must be exact
    return _from_level(level, codebook_size, transition, gamma_end)


def quarter_schedule(
    steps: int, codebook_size: int, transition: Transition, gamma_end: float = 0.9
) -> Schedule:
    """As the linear schedule, with the share of lost tokens following a quarter of a sine.

    The reverse chain then begins with few tokens a step, while hardly any is there to go by, and
    ends with many: MaskGIT's order. Training sees mostly noise as often as sampling does.
    """
    level = torch.sin(_level(steps) * math.pi / 2)
    level[-1] = 1.0
    return _from_level(level, codebook_size, transition, gamma_end)


def _level(steps: int) -> Tensor:
    """0, 1/T, …, 1 as float64 [T + 1]."""
    if steps < 1:
        raise ValueError(f"a schedule needs at least 1 step, got {steps}")
    return torch.arange(steps + 1, dtype=torch.float64) / steps


def _from_level(
    level: Tensor, codebook_size: int, transition: Transition, gamma_end: float
) -> Schedule:
    """A schedule that has lost the share level[t] of the tokens at time t."""
    ends = {"uniform": 0.0, "mask": 1.0, "mask_uniform": gamma_end}
    if transition not in ends:
        raise ValueError(f"transition must be one of {', '.join(ends)}, got {transition!r}")
    if transition == "mask_uniform" and not 0 < gamma_end < 1:
        raise ValueError(f"gamma_end must lie between 0 and 1, got {gamma_end}")
    return Schedule(transition, codebook_size, 1 - level, ends[transition] * level)


def in_turn(shares: Sequence[float], turns: Sequence[int] | None = None) -> Tensor:
    """When each row is noised, as shares of the chain: [rows, 2] (from, to); turns do not overlap.

    shares: how much of the chain each turn has, first turn first, in any unit. What has a large
    share is drawn in many steps, and learned most. turns: number of rows in each (default: 1).
    """
    sizes = torch.tensor(list(shares), dtype=torch.float64)
    if not len(sizes) or (sizes <= 0).any():
        raise ValueError("every turn needs a share above 0")
    sizes = sizes / sizes.sum()
    end = sizes.flip(0).cumsum(0).flip(0).clamp(max=1.0)
    start = torch.cat((end[1:], torch.zeros(1, dtype=torch.float64)))
    windows = torch.stack((start, end), dim=1)
    return windows if turns is None else windows.repeat_interleave(torch.tensor(list(turns)), dim=0)


def row_times(t: Time, windows: Tensor, steps: int) -> Tensor:
    """The time in 0..T at which each row reads the schedule: t [...] -> int64 [..., rows].

    windows: [rows, 2] from `in_turn`. All rows are clean at t = 0 and fully noised
    at t = T.
    """
    share = torch.as_tensor(t)[..., None].double() / steps
    start, end = windows.to(share.device).unbind(1)
    return ((share - start) / (end - start) * steps).clamp(0, steps).round().long()


def rows_in_turn(
    times: Tensor, windows: Tensor, count: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Rows to ask about at these times of rows [B, F'], and how many turns ahead each is: [B, n].

    Rows of the turns before are clean (time 0), rows of the turns after fully noised. Of the
    current turn `count` rows are picked at random, or all if there are no more, then rows of the
    turns after it; n is count + 1, so one at least is of a later turn until the last.
    """
    turn = torch.cat((torch.zeros(1), (windows.diff(dim=0) != 0).any(1).cumsum(0)))  # [F']
    clean = (times == 0).sum(1).clamp(max=times.shape[1] - 1)
    ahead = turn - turn[clean][:, None]  # [B, F']: below 0 before, 0 in the current turn
    order = ahead + 0.5 * torch.rand(ahead.shape, generator=generator)
    order = torch.where(ahead < 0, torch.inf, order)
    rank = order.argsort(1).argsort(1)
    surplus = (ahead == 0) & (rank >= count)
    rows = torch.where(surplus, order + len(windows), order).argsort(1)[:, : count + 1]
    return rows, ahead.gather(1, rows)
