"""Batches for training, determined by (seed, epoch, batch) alone, not by workers and ranks.

    loader = EpochLoader(dataset, ShuffledSampler(len(dataset), seed=7), batch_size=32, seed=7)
    for epoch in range(first_epoch, epochs):
        for batch in loader.batches(epoch, start=batches_done if epoch == first_epoch else 0):
            ...

A dataset's item is a pure function of (index, rng), and the rng of (seed, epoch, position). So a
checkpoint needs to keep only two integers: the epoch and the number of batches done.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from diffsound.errors import ConfigError, DataError

Item = dict[str, Any]
Collate = Callable[[Sequence[Item]], Item]


class ItemSampler(Protocol):
    """The order of an epoch, as a pure function of (its seed, epoch)."""

    def epoch_items(self, epoch: int) -> Sequence[int] | np.ndarray:
        """Dataset indices of the whole epoch in order, all ranks together."""
        ...


class ClipDataset(Protocol):
    """Random access to training items."""

    def __len__(self) -> int: ...

    def item(self, index: int, rng: np.random.Generator) -> Item:
        """One item; all randomness from `rng`. Holds at least "id": str."""
        ...


def item_rng(seed: int, epoch: int, position: int) -> np.random.Generator:
    """The generator of the item at `position` of an epoch."""
    return np.random.default_rng([seed, epoch, position])


def collate(items: Sequence[Item], padded: Sequence[str] = ("features", "mask")) -> Item:
    """Join items: arrays are stacked, those in `padded` are zero-padded along their first axis,
    numbers become tensors, everything else becomes a list.
    """
    return {key: _join(key, [item[key] for item in items], key in padded) for key in items[0]}


def _join(key: str, values: list[Any], padded: bool) -> Tensor | list[Any]:
    first = values[0]
    if isinstance(first, bool | np.bool_):
        return torch.tensor([bool(value) for value in values])
    if isinstance(first, int | np.integer):
        return torch.tensor([int(value) for value in values])
    if isinstance(first, float | np.floating):
        return torch.tensor([float(value) for value in values])
    if not isinstance(first, np.ndarray | Tensor):
        return values
    tensors = [torch.as_tensor(value) for value in values]
    if padded:
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)
    shapes = {tuple(tensor.shape) for tensor in tensors}
    if len(shapes) > 1:
        raise DataError(
            f"items of one batch have '{key}' of different shapes {sorted(shapes)}; "
            "give the loader bucket_by, or the dataset a fixed length"
        )
    return torch.stack(tensors)


class EpochLoader:
    """Batches of an epoch, resumable at any batch, split over ranks, read ahead by workers.

    Ranks take interleaved items of each global batch: two ranks with batch size B see together what
    one rank with batch size 2B sees.
    """

    def __init__(
        self,
        dataset: ClipDataset,
        sampler: ItemSampler,
        batch_size: int,
        *,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        workers: int = 0,
        prefetch: int = 4,
        collate: Collate = collate,
        bucket_by: Callable[[int], Hashable] | None = None,
        drop_last: bool = True,
        pin_memory: bool = False,
    ) -> None:
        """bucket_by: the bucket of a dataset index (e.g. its length); a batch has one bucket.

        drop_last: leave out global batches that are not full (with buckets: the remainder of each,
        so a bucket with fewer clips than a global batch is never seen). If False, and a last batch
        has fewer items than there are ranks, the last ranks have one batch less.
        """
        if batch_size < 1 or workers < 0:
            raise ConfigError("batch_size must be at least 1 and workers at least 0")
        if not 0 <= rank < world:
            raise ConfigError(f"rank {rank} is not one of the {world} ranks 0..{world - 1}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.rank, self.world = rank, world
        self.bucket_by = bucket_by
        self.drop_last = drop_last
        self._plan = _Plan()
        # One DataLoader for all epochs: its workers stay alive and get new plans.
        self._loader: DataLoader[Item] = DataLoader(
            _Addressed(dataset, seed),
            batch_sampler=self._plan,
            num_workers=workers,
            collate_fn=collate,
            persistent_workers=workers > 0,
            prefetch_factor=prefetch if workers > 0 else None,
            pin_memory=pin_memory,
            worker_init_fn=_one_thread if workers > 0 else None,
            # Without its own generator the DataLoader would draw from torch's global one.
            generator=torch.Generator(),
        )

    def batches(self, epoch: int, start: int = 0) -> Iterator[Item]:
        """The epoch's batches of this rank from batch `start` on.

        One iteration at a time: a new one takes over the workers of one that was aborted.
        """
        plan = self._epoch_plan(epoch)
        if start < 0 or start > len(plan):
            raise ConfigError(
                f"cannot start at batch {start}: epoch {epoch} has {len(plan)} batches"
            )
        self._plan.batches = plan[start:]
        yield from self._loader

    def batches_in(self, epoch: int) -> int:
        """The number of batches this rank has in the epoch."""
        return len(self._epoch_plan(epoch))

    def __len__(self) -> int:
        """Batches in epoch 0."""
        return self.batches_in(0)

    def _epoch_plan(self, epoch: int) -> list[list[Address]]:
        items = np.asarray(self.sampler.epoch_items(epoch), dtype=np.int64)
        size = self.batch_size * self.world
        if self.bucket_by is None:
            positions = np.arange(len(items))
            groups = [positions[at : at + size] for at in range(0, len(items), size)]
        else:
            groups = _bucketed(items, size, self.bucket_by)
        if self.drop_last:
            groups = [group for group in groups if len(group) == size]
            if not groups:
                raise DataError(
                    f"no full batch: {len(items)} clips in the epoch, {size} in a batch of all "
                    "ranks; use a smaller batch size or more clips"
                )
        mine = [group[self.rank :: self.world] for group in groups]
        return [[(epoch, int(at), int(items[at])) for at in group] for group in mine if len(group)]


# (epoch, position in the epoch, dataset index): with the seed, all an item depends on.
Address = tuple[int, int, int]


class _Plan:
    """The DataLoader's batch sampler: iterates over the plan it was given last."""

    def __init__(self) -> None:
        self.batches: list[list[Address]] = []

    def __iter__(self) -> Iterator[list[Address]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _Addressed(Dataset[Item]):
    """Lets DataLoader workers fetch an item by its address."""

    def __init__(self, dataset: ClipDataset, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed

    def __getitem__(self, address: Address) -> Item:
        epoch, position, index = address
        return self.dataset.item(index, item_rng(self.seed, epoch, position))


def _bucketed(
    items: np.ndarray, size: int, bucket_by: Callable[[int], Hashable]
) -> list[np.ndarray]:
    """Positions grouped by bucket: full groups as they fill, the remainders at the end."""
    filling: dict[Hashable, list[int]] = {}
    groups: list[np.ndarray] = []
    for position, index in enumerate(items):
        key = bucket_by(int(index))
        bucket = filling.setdefault(key, [])
        bucket.append(position)
        if len(bucket) == size:
            groups.append(np.asarray(filling.pop(key)))
    groups.extend(np.asarray(bucket) for bucket in filling.values())
    return groups


def _one_thread(worker: int) -> None:
    """Workers must not compete with the training process for its cores."""
    torch.set_num_threads(1)
