"""From logits to a draw: guidance, temperature, top-k, truncation, and the random numbers.

Noise is always drawn on the CPU, so a seed gives the same numbers on every device. With one
generator per item, an item draws the same numbers alone and in any batch: each call takes one
block of fixed shape from each item's own generator.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

# Below it the quotient overflows, and the most likely token is drawn anyway.
_COLDEST = 1e-6
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


def gumbel(uniform: Tensor) -> Tensor:
    """Standard Gumbel numbers from uniform ones, elementwise; finite for every input in [0, 1)."""
    tiny = torch.finfo(uniform.dtype).tiny
    return -torch.log(-torch.log(uniform.clamp_min(tiny)))


def draw_categorical(probs: Tensor, uniform: Tensor) -> Tensor:
    """Draw one index per row of probs [..., C] by inverse CDF from uniform [...]; int64 [...].

    Rows need not sum to one. A class of probability zero is never drawn: the threshold lies in
    (0, total], and the first class whose cumulative sum reaches it has a positive share.
    """
    cdf = probs.cumsum(-1)
    threshold = (1 - uniform.to(cdf.dtype)).unsqueeze(-1) * cdf[..., -1:]
    return torch.searchsorted(cdf, threshold).squeeze(-1)


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
    if temperature < _COLDEST:
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
    kept = before < mass
    kept[..., 0] = True
    return torch.zeros_like(probs, dtype=torch.bool).scatter(-1, order, kept)
