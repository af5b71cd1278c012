from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffsound.data.loaders import CurriculumSampler
from diffsound.errors import DataError, InputError

COUNTS = [1, 3, 1, 2, 1, 5, 2, 1, 0, 4]
SINGLE, MULTIPLE = {0, 2, 4, 7, 8}, {1, 3, 5, 6, 9}


def test_the_paper_schedule_is_algorithm_3() -> None:
    sampler = CurriculumSampler(COUNTS, n=2)
    for epoch in range(6):
        items = sampler.epoch_items(epoch)
        assert len(items) == len(set(items))
        assert set(items) == (SINGLE if epoch < 2 else MULTIPLE)
    assert set(sampler.epoch_items(100)) == MULTIPLE


counts = st.lists(st.integers(0, 6), min_size=2, max_size=40).filter(
    lambda values: min(values) <= 1 < max(values)
)


@given(counts, st.integers(1, 4), st.integers(0, 2**31), st.sampled_from(["paper", "mixed"]))
def test_an_epoch_depends_on_seed_and_number_only(
    label_counts: list[int], n: int, seed: int, schedule: str
) -> None:
    def make() -> CurriculumSampler:
        return CurriculumSampler(label_counts, n, schedule=schedule, seed=seed)  # type: ignore[arg-type]

    run = make()
    played = [run.epoch_items(epoch).tolist() for epoch in range(3 * n)]
    # A run resumed at any epoch, having seen none of those before, gives the same items.
    for epoch in range(3 * n):
        assert make().epoch_items(epoch).tolist() == played[epoch]
    # Processes take interleaved items: together all of them, none twice.
    for items in played:
        shares = [items[rank::3] for rank in range(3)]
        assert sorted(itertools.chain(*shares)) == sorted(items)


def test_the_mixed_schedule_keeps_easy_clips_and_adds_harder_ones() -> None:
    sampler = CurriculumSampler(COUNTS, n=2, schedule="mixed", seed=3)
    epochs = [set(sampler.epoch_items(epoch)) for epoch in range(6)]
    assert epochs[0] == SINGLE
    assert epochs[5] == SINGLE | MULTIPLE == set(sampler.epoch_items(9))
    for earlier, later in itertools.pairwise(epochs):
        assert earlier < later
        hardest = max(COUNTS[item] for item in earlier)
        assert all(COUNTS[item] >= hardest for item in later - earlier if COUNTS[item] > 1)


def test_epochs_and_seeds_are_shuffled_differently() -> None:
    label_counts = [1] * 50 + [2] * 50
    sampler = CurriculumSampler(label_counts, n=3, seed=1)
    orders = {tuple(sampler.epoch_items(epoch)) for epoch in range(9)}
    orders.add(tuple(CurriculumSampler(label_counts, n=3, seed=2).epoch_items(0)))
    assert len(orders) == 10
    first = {CurriculumSampler(label_counts, 1, seed=s).epoch_items(0)[0] for s in range(400)}
    assert len(first) == 50


def test_invalid_curricula_are_refused() -> None:
    with pytest.raises(InputError, match="n must be 1 or more"):
        CurriculumSampler(COUNTS, n=0)
    with pytest.raises(DataError, match="several labels"):
        CurriculumSampler([1, 1], n=1)
    with pytest.raises(DataError, match="one label"):
        CurriculumSampler([2, 3], n=1)
