"""The loader's promises: exact resume, ranks that add up, the same batches for any workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffsound.data.loaders import EpochLoader, FixedSampler, ShuffledSampler, collate
from diffsound.errors import ConfigError, DataError


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


def test_misuse_is_refused_in_one_line() -> None:
    with pytest.raises(DataError, match="'x' of different shapes"):
        collate([{"x": np.zeros(3)}, {"x": np.zeros(4)}])
    with pytest.raises(DataError, match="no full batch: 3 clips"):
        list(EpochLoader(Numbers(3), FixedSampler(range(3)), 4).batches(0))
    with pytest.raises(ConfigError, match="epoch 0 has 5 batches"):
        list(loader().batches(0, start=6))
