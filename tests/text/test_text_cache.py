from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffsound.errors import InputError
from diffsound.text.cache import CachedTextEncoder
from diffsound.text.config import TextEncoderConfig
from diffsound.text.encoders import load_text_encoder
from diffsound.text.features import TextFeatures


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


def test_the_disk_cache_is_reused_by_another_process(tmp_path: Path) -> None:
    CachedTextEncoder(LetterEncoder(), tmp_path)(["rain", "dog", ""])
    inner = LetterEncoder()
    again = CachedTextEncoder(inner, tmp_path)(["dog", "", "rain"])
    assert inner.encoded == []
    assert _same(again, LetterEncoder()(["dog", "", "rain"]))


def test_encoders_do_not_share_entries(tmp_path: Path) -> None:
    CachedTextEncoder(LetterEncoder(), tmp_path)(["rain"])
    other = LetterEncoder()
    other.fingerprint = "letters-2"
    CachedTextEncoder(other, tmp_path)(["rain"])
    assert other.encoded == ["rain"]


@pytest.mark.parametrize("damage", [b"", b"garbage", "truncated", "wrong shape"])
def test_damaged_entries_are_made_again(tmp_path: Path, damage: bytes | str) -> None:
    from safetensors.torch import save_file

    CachedTextEncoder(LetterEncoder(), tmp_path)(["rain"])
    (entry,) = tmp_path.rglob("*.safetensors")
    if damage == "truncated":
        entry.write_bytes(entry.read_bytes()[:-4])
    elif damage == "wrong shape":
        save_file({"features": torch.ones(2, 5), "pooled": torch.ones(5)}, entry)
    else:
        assert isinstance(damage, bytes)
        entry.write_bytes(damage)
    inner = LetterEncoder()
    assert _same(CachedTextEncoder(inner, tmp_path)(["rain"]), LetterEncoder()(["rain"]))
    assert inner.encoded == ["rain"]
    inner.encoded.clear()
    CachedTextEncoder(inner, tmp_path)(["rain"])
    assert inner.encoded == []


def test_an_unwritable_cache_folder_only_warns(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    cached = CachedTextEncoder(LetterEncoder(), blocked)
    with pytest.warns(UserWarning, match="takes no more"):
        features = cached(["rain"])
    assert _same(features, LetterEncoder()(["rain"]))


def test_threads_can_share_a_cache(tmp_path: Path) -> None:
    cached = CachedTextEncoder(LetterEncoder(), tmp_path, max_entries=5)
    texts = [[f"text {number % 13}", "rain"] for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        for asked, features in zip(texts, pool.map(cached, texts), strict=True):
            assert _same(features, LetterEncoder()(asked))


def test_official_clip_keeps_its_77_positions(clip_folder: Path, tmp_path: Path) -> None:
    encoder = load_text_encoder(TextEncoderConfig.official_clip(str(clip_folder)))
    direct = encoder(["a dog", "rain"])
    assert _same(CachedTextEncoder(encoder, tmp_path)(["a dog", "rain"]), direct)
    assert _same(CachedTextEncoder(encoder, tmp_path)(["a dog", "rain"]), direct)


def test_refusals() -> None:
    with pytest.raises(InputError, match="room for at least one entry"):
        CachedTextEncoder(LetterEncoder(), max_entries=0)
    with pytest.raises(InputError, match="list of at least one text"):
        CachedTextEncoder(LetterEncoder())([])
