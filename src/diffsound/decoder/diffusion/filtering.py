"""Shaping a distribution before drawing from it: guidance, temperature, top-k, truncation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot


def guide(conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance on discrete logits [..., K]: log p_u + scale (log p_c − log p_u).

    Logits serve as well as log-probabilities: they differ by a constant per position, which the
    later softmax removes. Scale 1 gives the conditional distribution, 0 the unconditional one.
    """
    return unconditional + scale * (conditional - unconditional)


def filter_logits(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    truncation: float = 1.0,
) -> Tensor:
    """Logits [..., K] to the probabilities [..., K] to draw from, in float32 or better.

    temperature divides the logits (0 means the most likely token, always); top_k keeps that many
    tokens; truncation then keeps the smallest set whose mass reaches it. What is kept is
    renormalised.
    """
    if temperature < 0:
        raise ValueError(f"temperature must not be negative, got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")
    if not 0 < truncation <= 1:
        raise ValueError(f"truncation must lie in (0, 1], got {truncation}")
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature == 0:
        return one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
    if temperature != 1:
        logits = logits / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        weakest = logits.topk(top_k, -1).values[..., -1:]
        logits = logits.masked_fill(logits < weakest, -torch.inf)
    probs = logits.softmax(-1)
    if truncation < 1:
        probs = probs * truncation_mask(probs, truncation)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def truncation_mask(probs: Tensor, mass: float) -> Tensor:
    """True at the smallest set of the most likely tokens whose mass reaches `mass`; [..., K].

    The token that crosses the mark is in the set, so the set is never empty.
    """
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1).roll(1, -1)  # mass of the tokens that are more likely
    before[..., 0] = 0
    return torch.zeros_like(probs, dtype=torch.bool).scatter(-1, order, before < mass)
