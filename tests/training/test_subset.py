"""The share of the training clips that a run learns from."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from diffsound.data.shards import PreparedData
from diffsound.errors import DataError
from diffsound.training.config import DataConfig
from diffsound.training.stage import clips_of


@pytest.fixture
def data(prepared: Path) -> PreparedData:
    return PreparedData.open(prepared)


def chosen(data: PreparedData, split: str = "train", **settings: Any) -> set[str]:
    config = DataConfig.model_validate(settings)
    return {data.records[at].id for at in clips_of(data, config, split)}


def test_a_subset_is_drawn_by_its_seed(data: PreparedData) -> None:
    parts = [chosen(data, subset=0.5, subset_seed=seed) for seed in range(60)]
    assert chosen(data, subset=0.5, subset_seed=0) == parts[0]
    assert len({frozenset(part) for part in parts}) > 30
    assert sum(map(len, parts)) / len(parts) == pytest.approx(6, abs=0.7)


def test_a_larger_subset_holds_a_smaller_one(data: PreparedData) -> None:
    shares = (0.4, 0.45, 0.8, 1.0)
    parts = [chosen(data, subset=share, subset_seed=3) for share in shares]
    assert all(small <= large for small, large in pairwise(parts))
    assert parts[-1] == chosen(data)


def test_a_subset_has_clips_of_the_chosen_sources_only(data: PreparedData) -> None:
    (source,) = {record.source for record in data.records}
    for split in ("train", "valid"):
        assert chosen(data, split, sources=[source, "other"]) == chosen(data, split)
    with pytest.raises(DataError, match="of other"):
        chosen(data, sources=["other"])


def test_a_subset_keeps_all_held_out_clips(data: PreparedData) -> None:
    assert chosen(data, "valid", subset=0.1) == chosen(data, "valid")


def test_an_empty_subset_is_refused(data: PreparedData) -> None:
    with pytest.raises(DataError, match="subset of 1e-09"):
        chosen(data, subset=1e-9)
