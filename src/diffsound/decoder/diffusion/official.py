"""What the published code computes where it differs from the exact chain.

Kept apart so that published checkpoints give the published numbers, while everything else uses
the exact functions. The differences: the schedule's ends are not exact; the uniform probabilities
are divided by K + 1 (the mask is counted as a code); the posterior is not normalised; with a
stride, the one-step posterior nearer to the target is used in place of the exact long one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, one_hot, pad

from diffsound.decoder.diffusion.process import Schedule, Time, spread
from diffsound.decoder.diffusion.samplers import truncation_mask

LOG_FLOOR = -70.0  # the published code's log 0
_FLOOR = 1e-30  # its probability of the impossible


def official_schedule(steps: int = 100, codebook_size: int = 256) -> Schedule:
    """The published mask-and-uniform schedule: ᾱ from 0.99999 to 9e-6, γ̄ from 9e-6 to 0.9.

    Linear over times 1..T, with the clean time 0 before them. Used with the exact functions this
    is a proper chain (β̄ divided by K); only `official_posterior` divides by K + 1.
    """
    if steps < 2:
        raise ValueError(f"the published schedule needs at least 2 steps, got {steps}")
    level = torch.arange(steps, dtype=torch.float64) / (steps - 1)
    stay = 0.99999 + (0.000009 - 0.99999) * level
    masked = 0.000009 + (0.9 - 0.000009) * level
    clean = torch.ones(1, dtype=torch.float64)
    return Schedule(
        "mask_uniform", codebook_size, torch.cat([clean, stay]), torch.cat([0 * clean, masked])
    )


def official_timesteps(start: int, stride: int) -> list[tuple[int, int]]:
    """Pairs (time given to the network, time t of the one-step posterior to t − 1).

    The network sees start, start − stride, … and always 1 at the end, so a stride of 3 costs 34
    evaluations of 100 and a stride of 7 costs 16.
    """
    if start < 1 or stride < 1:
        raise ValueError(f"start and stride must be at least 1, got {start} and {stride}")
    times = list(range(start, 0, -stride))
    if times[-1] != 1:
        times.append(1)
    return [(t, t - stride + 1 if t > stride else t) for t in times]


def official_log_x0(logits: Tensor, truncation: float = 1.0) -> Tensor:
    """Logits [..., K] to the published log p(x_0) [..., K + 1], the mask's entry at the floor.

    Truncation lowers what is cut to the floor and does not renormalise.
    """
    log_p = log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), -1)
    if truncation < 1:
        log_p = log_p.masked_fill(~truncation_mask(log_p.exp(), truncation), LOG_FLOOR)
    return pad(log_p, (0, 1), value=LOG_FLOOR).clamp(LOG_FLOOR, 0)


def official_posterior(log_p_x0: Tensor, xt: Tensor, t: Time, schedule: Schedule) -> Tensor:
    """The published log p(x_{t−1} | x_t): log_p_x0 [..., K + 1], xt [...] → [..., K + 1].

    At visible positions the mask's floor in log_p_x0 over its floor in q(x_t | x_0) is about 0.4,
    which the published code adds to the sum of ratios; the result is not renormalised.
    """
    size = schedule.codebook_size
    cells = xt.unsqueeze(-1)
    previous = torch.as_tensor(t) - 1
    # β is divided by K + 1 in the published code.
    alpha, beta, gamma = schedule.between(t, previous)
    alpha_t, beta_t, gamma_t = schedule.cumulative(t)
    alpha_s, beta_s, gamma_s = schedule.cumulative(previous)
    numbers = (alpha, beta, gamma, alpha_t, beta_t, gamma_t, alpha_s, beta_s, gamma_s)
    a, b, c, a_t, b_t, c_t, a_s, b_s, c_s = (spread(n, cells, log_p_x0.dtype) for n in numbers)
    counted = size / (size + 1)
    b, b_t, b_s = b * counted, b_t * counted, b_s * counted

    own = one_hot(xt, size + 1)[..., :size].to(log_p_x0.dtype)
    is_mask = cells == schedule.mask_index
    evidence = torch.where(is_mask, c_t, a_t * own + b_t)
    evidence = torch.cat([evidence, torch.where(is_mask, 1.0, _FLOOR)], -1)
    likelihood = torch.where(is_mask, c, a * own + b)
    likelihood = torch.cat([likelihood, torch.where(is_mask, 1.0, _FLOOR)], -1)

    ratio = log_p_x0.exp() / evidence
    total = ratio.sum(-1, keepdim=True)
    prior = torch.cat(
        [a_s * ratio[..., :size] + b_s * total, (1 - c_s) * ratio[..., size:] + c_s * total], -1
    )
    return (likelihood * prior).clamp_min(math.exp(LOG_FLOOR)).log().clamp(LOG_FLOOR, 0)
