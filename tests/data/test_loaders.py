"""The loader's promises: exact resume, ranks that add up, the same batches for any workers."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffsound.data.loaders import (
    BalancedSampler,
    CurriculumSampler,
    EpochLoader,
    FixedSampler,
    ShuffledSampler,
    collate,
)
from diffsound.errors import ConfigError, DataError, InputError


class Numbers:
    """Items that carry their index and a draw of their generator."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def item(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        return {"id": f"n{index}", "index": index, "draw": float(rng.random())}


def loader(count: int = 23, batch_size: int = 4, **options: Any) -> EpochLoader:
    return EpochLoader(
        Numbers(count), ShuffledSampler(count, seed=5), batch_size, seed=5, **options
    )


def rows(batches) -> list[list[tuple[int, float]]]:
    return [list(zip(b["index"].tolist(), b["draw"].tolist(), strict=True)) for b in batches]


@given(st.integers(1, 40), st.integers(1, 7), st.integers(1, 3), st.booleans(), st.integers(0, 3))
def test_all_ranks_together_see_what_one_process_sees(count, batch_size, world, bucketed, epoch):
    options = {
        "drop_last": False,
        "bucket_by": (lambda index: index % 3) if bucketed else None,
    }
    whole = rows(loader(count, batch_size * world, **options).batches(epoch))
    parts = [
        rows(loader(count, batch_size, rank=rank, world=world, **options).batches(epoch))
        for rank in range(world)
    ]
    for step, batch in enumerate(whole):
        seen = [row for part in parts if step < len(part) for row in part[step]]
        # The last, partial batches of ranks without items shift nothing before them.
        if len(batch) == batch_size * world:
            assert sorted(seen) == sorted(batch)
    assert sorted(row for part in parts for b in part for row in b) == sorted(
        row for batch in whole for row in batch
    )


@given(st.integers(0, 5), st.integers(0, 4))
def test_resuming_gives_the_remaining_batches(start, epoch) -> None:
    assert rows(loader().batches(epoch, start)) == rows(loader().batches(epoch))[start:]


def test_every_item_comes_once_per_epoch_with_new_randomness() -> None:
    first, second = (rows(loader(24).batches(epoch)) for epoch in (0, 1))
    flat = [row for batch in first for row in batch]
    assert sorted(index for index, _ in flat) == list(range(24))
    assert not {draw for _, draw in flat} & {draw for batch in second for _, draw in batch}


def test_workers_do_not_change_batches_even_after_an_aborted_epoch() -> None:
    alone, helped = loader(), loader(workers=2)
    abandoned = helped.batches(0)
    next(abandoned)
    for epoch, start in ((0, 0), (1, 2), (2, 0)):
        assert rows(helped.batches(epoch, start)) == rows(alone.batches(epoch, start))


def test_global_random_state_is_left_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    list(loader().batches(0))
    assert torch.equal(before, torch.get_rng_state())


def test_batches_have_one_bucket_and_keep_all_items() -> None:
    buckets = loader(30, bucket_by=lambda index: index % 4, drop_last=False)
    batches = rows(buckets.batches(1))
    assert all(len({index % 4 for index, _ in batch}) == 1 for batch in batches)
    assert sorted(index for batch in batches for index, _ in batch) == list(range(30))
    assert buckets.batches_in(1) == len(batches)


def test_an_epoch_has_full_batches_only() -> None:
    assert loader(23, 4).batches_in(0) == 5
    assert loader(23, 4, drop_last=False).batches_in(0) == 6
    assert loader(23, 4, world=2, rank=1).batches_in(0) == 2


def test_collate_stacks_pads_and_lists() -> None:
    items = [
        {"id": "a", "n": 1, "ok": True, "x": np.ones((2, 3), np.float32),
         "features": torch.ones(2, 4), "mask": torch.ones(2, dtype=torch.bool)},
        {"id": "b", "n": 2, "ok": False, "x": np.zeros((2, 3), np.float32),
         "features": torch.ones(3, 4), "mask": torch.ones(3, dtype=torch.bool)},
    ]  # fmt: skip
    batch = collate(items)
    assert batch["id"] == ["a", "b"]
    assert batch["n"].tolist() == [1, 2]
    assert batch["ok"].dtype == torch.bool
    assert batch["x"].shape == (2, 2, 3)
    assert batch["features"].shape == (2, 3, 4)
    assert batch["features"][0, 2].eq(0).all()
    assert batch["mask"].tolist() == [[True, True, False], [True, True, True]]


def test_wrong_loader_arguments_are_refused_in_one_line() -> None:
    with pytest.raises(DataError, match="'x' of different shapes"):
        collate([{"x": np.zeros(3)}, {"x": np.zeros(4)}])
    with pytest.raises(DataError, match="no full batch: 3 clips"):
        list(EpochLoader(Numbers(3), FixedSampler(range(3)), 4).batches(0))
    with pytest.raises(ConfigError, match="epoch 0 has 5 batches"):
        list(loader().batches(0, start=6))


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
