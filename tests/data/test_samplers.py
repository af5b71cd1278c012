"""Samplers: pure in (seed, epoch), and the shares they promise."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffsound.data.loaders import (
    BalancedSampler,
    FixedSampler,
    ShuffledSampler,
)
from diffsound.errors import DataError

LABELS = ["dog"] * 60 + ["rain"] * 9 + ["bell"] * 3


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: ShuffledSampler(40, seed),
        lambda seed: BalancedSampler(LABELS, seed),
    ],
)
def test_order_depends_on_seed_and_epoch_only(make) -> None:
    order = make(3).epoch_items(5)
    assert np.array_equal(order, make(3).epoch_items(5))
    assert not np.array_equal(order, make(3).epoch_items(6))
    assert not np.array_equal(order, make(4).epoch_items(5))


def test_fixed_and_shuffled_visit_every_item_once() -> None:
    assert FixedSampler(range(5)).epoch_items(9).tolist() == [0, 1, 2, 3, 4]
    assert sorted(ShuffledSampler(50, 1).epoch_items(2)) == list(range(50))


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.integers(1, 200),
    st.integers(0, 1000),
)
def test_balanced_class_counts_stay_within_one_of_their_expectation(sizes, size, epoch) -> None:
    labels = [label for label, count in enumerate(sizes) for _ in range(count)]
    items = BalancedSampler(labels, seed=2, balance=0.0, size=size).epoch_items(epoch)
    assert len(items) == size
    counts = np.bincount([labels[item] for item in items], minlength=len(sizes))
    expected = np.asarray(sizes) / sum(sizes) * size
    assert np.all(np.abs(counts - expected) < 1 + 1e-6)


def test_balanced_class_shares_are_unbiased() -> None:
    sampler = BalancedSampler(["a", "b", "b", "b"], seed=0, balance=0.0, size=2)
    total = sum(np.bincount(sampler.epoch_items(e) > 0, minlength=2) for e in range(2000))
    assert total[1] / total.sum() == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize("balance", [0.0, 0.5, 1.0])
def test_class_shares_follow_the_balance(balance) -> None:
    sampler = BalancedSampler(LABELS, seed=1, balance=balance, size=720)
    counts = Counter(LABELS[i] for i in sampler.epoch_items(0))
    shares = np.array([60, 9, 3]) ** (1 - balance)
    expected = shares / shares.sum() * 720
    assert [counts[name] for name in ("dog", "rain", "bell")] == pytest.approx(expected, abs=1)


def test_balanced_repeats_a_clip_only_after_its_whole_class() -> None:
    items = BalancedSampler(LABELS, seed=1, balance=1.0, size=75).epoch_items(0)
    counts = np.bincount(items, minlength=len(LABELS))
    assert counts[:60].max() == 1
    assert counts[69:].max() - counts[69:].min() <= 1
    assert counts[69:].sum() == 25


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(DataError, match="no clips"):
        ShuffledSampler(0)
