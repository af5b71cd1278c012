"""The forward process: clean tokens to noisy ones (eq. 10, 11 and 14, 17, 20)."""

from __future__ import annotations

import torch
from torch import Tensor

from diffsound.decoder.diffusion.noise import Generators, uniforms
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
