from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

from diffsound.text.encoders import load_text_encoder
from diffsound.text.features import CachedTextEncoder, TextEncoderConfig, TextFeatures


class LetterEncoder:
    """One vector per letter, its code point times 1, 2, 3; counts what it was asked."""

    dim = 3
    fingerprint = "letters-1"

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def __call__(self, texts: Sequence[str]) -> TextFeatures:
        self.encoded += texts
        batches = []
        for text in texts:
            points = torch.tensor([ord(char) for char in "^" + text], dtype=torch.float32)
            features = points[:, None] * torch.tensor([1.0, 2.0, 3.0])
            mask = torch.ones(1, len(points), dtype=torch.bool)
            batches.append(TextFeatures(features[None], mask, features.mean(0)[None]))
        return TextFeatures.cat(batches)


def _same(left: TextFeatures, right: TextFeatures) -> bool:
    return (
        torch.equal(left.features, right.features)
        and torch.equal(left.mask, right.mask)
        and torch.equal(left.pooled, right.pooled)
    )


@given(st.lists(st.lists(st.text(max_size=5), min_size=1, max_size=6), max_size=6))
def test_cached_features_equal_the_encoder_s(calls: list[list[str]]) -> None:
    cached = CachedTextEncoder(LetterEncoder(), max_entries=3)
    for texts in calls:
        assert _same(cached(texts), LetterEncoder()(texts))


def test_each_text_is_encoded_once() -> None:
    inner = LetterEncoder()
    cached = CachedTextEncoder(inner)
    cached(["rain", "dog", "rain"])
    cached(["dog", "wind"])
    assert inner.encoded == ["rain", "dog", "wind"]
    assert (cached.dim, cached.fingerprint) == (3, "letters-1")


def test_memory_keeps_the_most_recently_used_texts() -> None:
    inner = LetterEncoder()
    cached = CachedTextEncoder(inner, max_entries=2)
    for text in ("a", "b", "a", "c"):  # drops b
        cached([text])
    inner.encoded.clear()
    cached(["a"])
    cached(["c"])
    assert inner.encoded == []
    cached(["b"])
    assert inner.encoded == ["b"]


def test_official_clip_keeps_its_77_positions(clip_folder: Path) -> None:
    encoder = load_text_encoder(TextEncoderConfig.official_clip(str(clip_folder)))
    direct = encoder(["a dog", "rain"])
    cached = CachedTextEncoder(encoder)
    assert _same(cached(["a dog", "rain"]), direct)
    assert _same(cached(["a dog", "rain"]), direct)
