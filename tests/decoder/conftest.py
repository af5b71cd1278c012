"""Small texts and generators shared by the decoders' tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from diffsound.text.features import TextFeatures

MakeText = Callable[..., TextFeatures]
MakeGenerators = Callable[[Sequence[int]], list[torch.Generator]]


@pytest.fixture
def make_text() -> MakeText:
    """Random features of texts with the given numbers of tokens, padded to the longest."""

    def make(lengths: Sequence[int], dim: int = 16, seed: int = 0) -> TextFeatures:
        generator = torch.Generator().manual_seed(seed)
        mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
        features = torch.randn(*mask.shape, dim, generator=generator) * mask[..., None]
        return TextFeatures(features, mask, torch.randn(len(lengths), dim, generator=generator))

    return make


@pytest.fixture
def make_generators() -> MakeGenerators:
    """CPU generators with the given seeds."""
    return lambda seeds: [torch.Generator().manual_seed(seed) for seed in seeds]
