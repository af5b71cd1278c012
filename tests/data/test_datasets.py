"""Datasets: what an item holds, and that it depends on nothing but its arguments."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from data_support import MemoryClips
from diffsound.data.datasets import AugmentConfig, TokenDataset, WaveCache, WaveDataset, label_names
from diffsound.data.loaders import BalancedSampler, EpochLoader
from diffsound.errors import DataError
from diffsound.text.features import TextFeatures

FULL = AugmentConfig(fill="chain", speed=0.05)


def noise(seconds: float, seed: int, rate: int = 8000) -> np.ndarray:
    return 0.3 * np.random.default_rng(seed).standard_normal(int(rate * seconds)).clip(-3, 3)


@pytest.fixture(scope="module")
def clips() -> MemoryClips:
    lengths = (0.05, 0.4, 1.0, 0.2, 0.7, 0.1)
    return MemoryClips(
        [noise(seconds, i) for i, seconds in enumerate(lengths)],
        labels=[["dog"], ["rain"], ["rain"], [], ["bell"], ["dog"]],
        sample_rate=8000,
    )


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_without_augmentation_an_item_is_the_clip(clips) -> None:
    dataset = WaveDataset(clips, range(6), 4000)
    short, long = dataset.item(0, rng()), dataset.item(2, rng())
    assert np.array_equal(short["wave"][:400], clips.wave(0))
    assert not short["wave"][400:].any()
    assert np.array_equal(long["wave"], clips.wave(2)[:4000])
    assert [dataset.item(i, rng())["label"] for i in range(6)] == [1, 2, 2, -1, 0, 1]
    assert dataset.labels == label_names(clips, range(6)) == ["bell", "dog", "rain"]


@pytest.mark.parametrize("fill", ["silence", "loop", "chain"])
def test_items_are_pure_and_well_formed(clips, fill) -> None:
    dataset = WaveDataset(clips, range(6), 4000, FULL.model_copy(update={"fill": fill}))
    for index in range(6):
        item = dataset.item(index, rng(index))
        again = dataset.item(index, rng(index))
        other = dataset.item(index, rng(index + 100))
        assert item["wave"].shape == (4000,)
        assert item["wave"].dtype == np.float32
        assert np.abs(item["wave"]).max() <= 0.991
        assert np.array_equal(item["wave"], again["wave"])
        assert not np.array_equal(item["wave"], other["wave"])


def test_short_clips_are_filled_as_configured(clips) -> None:
    def window(fill: str) -> np.ndarray:
        plain = AugmentConfig(fill=fill, gain_db=(0, 0))
        return WaveDataset(clips, range(6), 4000, plain).item(0, rng(3))["wave"]

    assert np.count_nonzero(window("silence")) == np.count_nonzero(clips.wave(0))
    looped = window("loop")
    assert np.array_equal(looped[:400], looped[400:800])
    assert np.count_nonzero(window("chain")) > 3900


def test_chain_leaves_some_windows_silent(clips) -> None:
    shortest = min(range(len(clips)), key=lambda clip: clips.records[clip].seconds)
    length = 4 * int(clips.records[shortest].seconds * clips.sample_rate)

    def silent_share(probability: float) -> float:
        how = AugmentConfig(fill="chain", chain_silence=probability, gain_db=(0.0, 0.0))
        dataset = WaveDataset(clips, [shortest], length, how)
        waves = [dataset.item(0, np.random.default_rng(seed))["wave"] for seed in range(40)]
        return float(np.mean([(np.abs(wave) < 1e-6).mean() > 0.5 for wave in waves]))

    assert silent_share(0.0) == 0
    assert silent_share(1.0) == 1
    assert 0.2 < silent_share(0.5) < 0.8


def test_a_chain_of_empty_clips_terminates(clips) -> None:
    empty = MemoryClips([np.zeros(0), np.zeros(0)])
    wave = WaveDataset(empty, [0, 1], 100, AugmentConfig(fill="chain")).item(0, rng())["wave"]
    assert wave.shape == (100,)
    assert not wave.any()


def test_cache_differs_by_rounding_only(clips) -> None:
    cache = WaveCache(clips, [4, 1])
    for i in (4, 1):
        assert np.abs(cache.wave(i) - clips.wave(i).clip(-1, 1)).max() <= 1 / 32768
    cached = WaveDataset(clips, [4, 1], 500, FULL, cache=True).item(1, rng(2))["wave"]
    plain = WaveDataset(clips, [4, 1], 500, FULL).item(1, rng(2))["wave"]
    assert np.abs(cached - plain).max() < 1e-3


def test_workers_give_the_same_batches(clips) -> None:
    dataset = WaveDataset(clips, range(6), 800, FULL, cache=True)
    sampler = BalancedSampler([dataset.label(i) for i in range(6)], seed=1, size=12)
    alone = EpochLoader(dataset, sampler, 4, seed=1)
    helped = EpochLoader(dataset, sampler, 4, seed=1, workers=1)
    for one, two in zip(alone.batches(1), helped.batches(1), strict=True):
        assert one["id"] == two["id"]
        assert torch.equal(one["wave"], two["wave"])
        assert torch.equal(one["label"], two["label"])


def test_datasets_can_be_pickled(clips) -> None:
    dataset = WaveDataset(clips, range(6), 800, FULL, cache=True)
    copy = pickle.loads(pickle.dumps(dataset))
    assert np.array_equal(copy.item(2, rng(1))["wave"], dataset.item(2, rng(1))["wave"])


def encoded(captions: int, lengths: list[int], dim: int = 4) -> TextFeatures:
    features = torch.zeros(captions, max(lengths), dim)
    mask = torch.zeros(captions, max(lengths), dtype=torch.bool)
    for i, length in enumerate(lengths):
        features[i, :length] = 10 * length + i
        mask[i, :length] = True
    return TextFeatures(features.half(), mask, torch.arange(captions * dim).view(captions, dim))


@pytest.fixture(scope="module")
def tokenised() -> MemoryClips:
    widths = (5, 9, 9, 14, 3, 16)
    return MemoryClips(
        [noise(0.1, i) for i in range(6)],
        tokens=[
            (np.arange(2 * 3 * w).reshape(2, 3, w) + 100 * i).astype(np.uint16)
            for i, w in enumerate(widths)
        ],
        text=[encoded(2, [2, 4]) for _ in range(6)],
    )


def test_a_token_item_is_a_variant_with_a_caption(tokenised) -> None:
    dataset = TokenDataset(tokenised, range(6))
    grids, texts = set(), set()
    for seed in range(40):
        item = dataset.item(1, rng(seed))
        assert item["tokens"].dtype == np.int64
        variant = [np.array_equal(item["tokens"], v) for v in tokenised.tokens().of(1)]
        assert sum(variant) == 1
        grids.add(variant.index(True))
        texts.add(tuple(item["features"].shape))
        assert item["mask"].all()
        assert item["features"].dtype == torch.float32
    assert grids == {0, 1}
    assert texts == {(2, 4), (4, 4)}
    fixed = TokenDataset(tokenised, range(6), augment=False)
    assert np.array_equal(fixed.item(1, rng(5))["tokens"], tokenised.tokens().of(1)[0])


def test_an_empty_selection_is_refused(clips) -> None:
    with pytest.raises(DataError, match="no clips"):
        WaveDataset(clips, [], 100)
