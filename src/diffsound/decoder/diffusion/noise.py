"""Random numbers that depend on a seed and on nothing else.

Noise is always drawn on the CPU, so a seed gives the same numbers on every device. With one
generator per item, an item draws the same numbers alone and in any batch: each call takes one
block of fixed shape from each item's own generator.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

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
