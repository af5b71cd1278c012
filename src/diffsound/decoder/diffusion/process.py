"""The forward process, clean tokens to noisy ones (eq. 10, 11 and 14, 17, 20), and back.

Going back from x_t to an earlier x_s, s < t (eq. 12, 23 and 26), in O(K) per token.

By Bayes, q(x_s=j | x_t, x_0=i) = q(x_t | x_s=j) q(x_s=j | x_0=i) / q(x_t | x_0=i). The last
factor takes only two values over i: for a visible x_t = k it is β̄_t, plus ᾱ_t where i = k; for
x_t = mask it is γ̄_t. So with r_i = p(x_0=i)/q(x_t | x_0=i) the mixture over x_0 needs r and its sum
only:  p(x_s=j | x_t) = q(x_t | x_s=j) (ᾱ_s r_j + β̄_s Σ_i r_i).

Two states cannot occur under q but can be handed in; they get a defined meaning:

- a visible token where nothing is ever replaced (β̄_t = 0, the mask matrix) is carried over,
  whatever p(x_0) says: it was never touched;
- a mask where nothing is ever masked (γ̄_t = 0, the uniform matrix) tells nothing, so
  p(x_s) = q(x_s | x_0) averaged over p(x_0).

A time step is any s < t, so the same functions serve the training loss (s = t − 1) and strides.
All terms are positive: nothing cancels, and float32 is enough. Lower precision is raised to it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from diffsound.decoder.diffusion.draws import Generators, uniforms
from diffsound.decoder.diffusion.schedule import Schedule, Time, spread


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
