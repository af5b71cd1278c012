"""The forward process, clean tokens to noisy ones, and back (section IV-B).

The paper's three transition matrices (eq. 13, 16, 19) are one family. At time t a token

- is unchanged with probability ᾱ_t ("stay"),
- has become the mask with probability γ̄_t ("masked"),
- has been redrawn uniformly from the K codes otherwise, β̄_t = (1 − ᾱ_t − γ̄_t)/K for each.

The uniform matrix has γ̄ = 0; the mask matrix has β̄ = 0 (the paper writes β for its "stay");
the mask-and-uniform matrix has both. Two vectors of T + 1 numbers therefore hold everything, and
no K×K matrix is ever built. Time runs from 0 (clean) to T; the mask is index K.

Rows may be noised one after another. The rows of a residual codec are stages of one description,
coarse to fine. Noising the fine ones first means that the reverse chain draws the coarse ones
first, and every finer row given them. It stays the paper's process: cells are noised independently
of each other, only that each row reads the schedule at a time of its own.

Going back from x_t to an earlier x_s, s < t (eq. 12, 23 and 26), takes O(K) per token. By Bayes,
q(x_s=j | x_t, x_0=i) = q(x_t | x_s=j) q(x_s=j | x_0=i) / q(x_t | x_0=i). The last factor takes only
two values over i: for a visible x_t = k it is β̄_t, plus ᾱ_t where i = k; for x_t = mask it is γ̄_t.
So with r_i = p(x_0=i)/q(x_t | x_0=i) the mixture over x_0 needs r and its sum only:
p(x_s=j | x_t) = q(x_t | x_s=j) (ᾱ_s r_j + β̄_s Σ_i r_i).

Two states cannot occur under q but can be handed in; they get a defined meaning:

- a visible token where nothing is ever replaced (β̄_t = 0, the mask matrix) is carried over,
  whatever p(x_0) says: it was never touched;
- a mask where nothing is ever masked (γ̄_t = 0, the uniform matrix) tells nothing, so
  p(x_s) = q(x_s | x_0) averaged over p(x_0).

A time step is any s < t, so the same functions serve the training loss (s = t − 1) and strides.
All terms are positive: nothing cancels, and float32 is enough. Lower precision is raised to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

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


# One CPU generator per item; or one (None: torch's global one) for the whole batch, in training.
Generators = Sequence[torch.Generator] | torch.Generator | None


def uniforms(
    generators: Generators, shape: Sequence[int], device: torch.device | str = "cpu"
) -> Tensor:
    """Uniform numbers in [0, 1), float32 of the given shape; its first axis is the batch."""
    if generators is None or isinstance(generators, torch.Generator):
        return torch.rand(tuple(shape), generator=generators).to(device)
    batch, *cells = shape
    if len(generators) != batch:
        raise ValueError(f"{batch} items need {batch} generators, got {len(generators)}")
    noise = torch.empty(batch, *cells)
    for item, generator in zip(noise, generators, strict=True):
        torch.rand(cells, generator=generator, out=item)
    return noise.to(device)


def q_xt_given_xs(
    xs: Tensor, t: Time, s: Time, schedule: Schedule, dtype: torch.dtype = torch.float32
) -> Tensor:
    """q(x_t | x_s) for tokens xs [...] at time s < t: probabilities [..., K + 1] (eq. 10).

    A mask stays a mask under all three matrices.
    """
    alpha, beta, gamma = schedule.between(t, s).over(xs, torch.promote_types(dtype, torch.float32))
    size = schedule.codebook_size
    probs = beta.new_empty(*xs.shape, size + 1)
    probs[..., :size] = beta.unsqueeze(-1)
    probs[..., size] = gamma
    probs.scatter_add_(-1, xs.unsqueeze(-1), alpha.expand(xs.shape).unsqueeze(-1))
    absorbed = torch.zeros(size + 1, dtype=probs.dtype, device=probs.device)
    absorbed[size] = 1
    return torch.where((xs == size).unsqueeze(-1), absorbed, probs).to(dtype)


def q_xt_given_x0(
    x0: Tensor, t: Time, schedule: Schedule, dtype: torch.dtype = torch.float32
) -> Tensor:
    """q(x_t | x_0) = ᾱ_t c(x_0) + (γ̄_t − β̄_t) c(K) + β̄_t: probabilities [..., K + 1] (eq. 20)."""
    return q_xt_given_xs(x0, t, torch.zeros_like(torch.as_tensor(t)), schedule, dtype)


def sample_xt(x0: Tensor, t: Time, schedule: Schedule, generators: Generators) -> Tensor:
    """Draw x_t ~ q(x_t | x_0) for clean tokens x0 [B, ...], without a tensor K wide.

    One uniform number decides between mask, redraw and stay; a second picks the redrawn code.
    """
    stay, _, masked = schedule.cumulative(t)
    lost, masked = (spread(share, x0, torch.float32) for share in (1 - stay, masked))
    fate, code = uniforms(generators, (x0.shape[0], 2, *x0.shape[1:]), x0.device).unbind(1)
    # fate is always below 1, so where 1 − ᾱ or γ̄ is 1 no token survives.
    xt = torch.where(fate < lost, _random_codes(code, schedule), x0)
    return torch.where(fate < masked, schedule.mask_index, xt)


def sample_stationary(
    shape: tuple[int, ...],
    schedule: Schedule,
    generators: Generators,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Draw x_T ~ p(x_T), where algorithm 2 of the paper starts; int64 of shape [B, ...]."""
    batch, *cells = shape
    fate, code = uniforms(generators, (batch, 2, *cells), device).unbind(1)
    masked = fate < float(schedule.masked[-1])
    return torch.where(masked, schedule.mask_index, _random_codes(code, schedule))


def _random_codes(uniform: Tensor, schedule: Schedule) -> Tensor:
    """Codes 0..K − 1, equally likely, from uniform numbers in [0, 1)."""
    size = schedule.codebook_size
    return (uniform * size).long().clamp_max(size - 1)


# Stands for log 0: far below any log-probability, yet finite, so that gradients stay finite.
LOG_ZERO = -1e30


def reverse_probs(p_x0: Tensor, xt: Tensor, t: Time, s: Time, schedule: Schedule) -> Tensor:
    """p(x_s | x_t) = Σ_i q(x_s | x_t, x_0=i) p(x_0=i), the reparameterised step (eq. 23, 26).

    p_x0: [..., K] the network's distribution of clean tokens; xt: [...] tokens at time t, mask
    included. Returns probabilities [..., K + 1] that sum to what p_x0 sums to.
    """
    p = p_x0.to(torch.promote_types(p_x0.dtype, torch.float32))
    step = _Step(xt.unsqueeze(-1), t, s, schedule, p.dtype)
    (alpha_t, beta_t, _), (alpha_s, beta_s, _) = step.upto_t, step.upto_s
    alpha, beta, _ = step.between
    p_code = p.gather(-1, step.code)
    p_rest = p.scatter(-1, step.code, 0).sum(-1, keepdim=True)  # not 1 − p_code: that cancels
    total = p_code + p_rest

    safe_beta_t = torch.where(beta_t > 0, beta_t, 1.0)
    r_code = p_code / (alpha_t + safe_beta_t)
    r_total = r_code + p_rest / safe_beta_t
    # Every code but x_t itself is scale·p + shift; x_t's own entry is written over it.
    scale = torch.where(step.is_mask, step.unmask * alpha_s, beta * alpha_s / safe_beta_t)
    shift = torch.where(step.is_mask, step.unmask * beta_s * total, beta * beta_s * r_total)
    scale = scale.masked_fill(step.carried, 0)
    own = torch.where(
        step.is_mask, scale * p_code + shift, (alpha + beta) * (alpha_s * r_code + beta_s * r_total)
    )
    own = torch.where(step.carried, total, own)
    probs = (scale * p + shift.masked_fill(step.carried, 0)).scatter(-1, step.code, own)
    return torch.cat([probs, torch.where(step.is_mask, step.stay_masked * total, 0.0)], -1)


def log_reverse_probs(log_p_x0: Tensor, xt: Tensor, t: Time, s: Time, schedule: Schedule) -> Tensor:
    """log p(x_s | x_t) as `reverse_probs`, from normalised log p(x_0) [..., K]; [..., K + 1].

    In logarithms a hopelessly wrong prediction, whose probability underflows, still has a finite
    loss and a gradient. Impossible states are LOG_ZERO.
    """
    log_p = log_p_x0.to(torch.promote_types(log_p_x0.dtype, torch.float32))
    step = _Step(xt.unsqueeze(-1), t, s, schedule, log_p.dtype)
    (alpha_t, beta_t, _), (alpha_s, beta_s, _) = step.upto_t, step.upto_s
    alpha, beta, _ = step.between
    own = one_hot(step.code.squeeze(-1), schedule.codebook_size).bool() & ~step.is_mask

    evidence = torch.where(own, _log(alpha_t + beta_t), _log(beta_t))
    log_r = log_p - torch.where(step.is_mask, 0.0, evidence)
    log_total = log_r.logsumexp(-1, keepdim=True)
    likelihood = torch.where(own, _log(alpha + beta), _log(beta))
    likelihood = torch.where(step.is_mask, _log(step.unmask), likelihood)
    codes = likelihood + torch.logaddexp(_log(alpha_s) + log_r, _log(beta_s) + log_total)
    codes = torch.where(step.carried, torch.where(own, 0.0, LOG_ZERO), codes)
    mask = torch.where(step.is_mask, _log(step.stay_masked) + log_total, LOG_ZERO)
    return torch.cat([codes, mask], -1)


def posterior(
    x0: Tensor,
    xt: Tensor,
    t: Time,
    s: Time,
    schedule: Schedule,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """q(x_s | x_t, x_0) for known clean tokens x0 [...]: probabilities [..., K + 1] (eq. 12)."""
    certain = one_hot(x0, schedule.codebook_size).to(torch.promote_types(dtype, torch.float32))
    return reverse_probs(certain, xt, t, s, schedule).to(dtype)


class _Step:
    """What both forms need of x_t and the times s < t, broadcasting over cells [..., 1]."""

    def __init__(
        self, cells: Tensor, t: Time, s: Time, schedule: Schedule, dtype: torch.dtype
    ) -> None:
        upto_t, upto_s = schedule.cumulative(t), schedule.cumulative(s)
        between = schedule.between(t, s)
        ever_masked = upto_t.masked > 0
        share = torch.where(ever_masked, upto_t.masked, 1.0)
        # Given a mask at t: γ/γ̄_t weighs each earlier visible state, γ̄_s/γ̄_t the earlier mask.
        unmask = torch.where(ever_masked, between.masked / share, 1.0)
        stay_masked = torch.where(ever_masked, upto_s.masked / share, 0.0)

        self.upto_t = upto_t.over(cells, dtype)
        self.upto_s = upto_s.over(cells, dtype)
        self.between = between.over(cells, dtype)
        self.unmask = spread(unmask, cells, dtype)
        self.stay_masked = spread(stay_masked, cells, dtype)
        self.is_mask = cells == schedule.mask_index
        self.carried = ~self.is_mask & (self.upto_t.uniform == 0)
        # A mask has no code of its own; index 0 then only keeps gather in range.
        self.code = cells.masked_fill(self.is_mask, 0)


def _log(values: Tensor) -> Tensor:
    """Elementwise logarithm with LOG_ZERO for zero."""
    return torch.where(values > 0, values.clamp_min(1e-38).log(), LOG_ZERO)
