"""Batches for training: pure functions of (seed, epoch, batch), whatever the workers and ranks.

    loader = EpochLoader(dataset, ShuffledSampler(len(dataset), seed=7), batch_size=32, seed=7)
    for batch in loader.batches(epoch, start=batches_done):
        ...

A sampler gives the order of an epoch from (seed, epoch). A dataset's item is a pure function of
(index, rng), and the rng of (seed, epoch, position). So a stopped run resumes from two integers,
the epoch and the number of batches done; every rank computes the same order and takes its share.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from diffsound.errors import ConfigError, DataError, InputError

Item = dict[str, Any]


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


def epoch_rng(seed: int, epoch: int) -> np.random.Generator:
    """The generator of an epoch's order; its third word keeps it distinct from per-item ones."""
    return np.random.default_rng([seed, epoch, 0x0DDE])


class FixedSampler:
    """The same items in the same order in every epoch: for validation."""

    def __init__(self, items: Sequence[int]) -> None:
        self.items = np.asarray(_some(items))

    def epoch_items(self, epoch: int) -> np.ndarray:
        """[items] int64, the same for every epoch."""
        return self.items


class ShuffledSampler:
    """Every item once per epoch, in a fresh order."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.count = len(_some(range(count)))
        self.seed = seed

    def epoch_items(self, epoch: int) -> np.ndarray:
        """[count] int64, a permutation."""
        return epoch_rng(self.seed, epoch).permutation(self.count)


class BalancedSampler:
    """Classes drawn in proportion to n_c^(1 - balance), clips evenly within their class.

    balance 0 keeps the data's shares, 1 gives every class the same share. Values between make rare
    classes more frequent without repeating their few clips endlessly. `favour` multiplies the share
    of a class.
    """

    def __init__(
        self,
        labels: Sequence[Hashable],
        seed: int = 0,
        *,
        balance: float = 0.5,
        size: int | None = None,
        favour: Callable[[Hashable], float] | None = None,
    ) -> None:
        members: dict[Hashable, list[int]] = {}
        for item, label in enumerate(_some(labels)):
            members.setdefault(label, []).append(item)
        self.members = [np.asarray(items) for items in members.values()]
        self.size = size if size is not None else len(labels)
        self.seed = seed
        counts = np.array([len(items) for items in self.members], dtype=np.float64)
        self.class_weights = counts ** (1.0 - balance)
        if favour is not None:
            self.class_weights *= [favour(label) for label in members]

    def epoch_items(self, epoch: int) -> np.ndarray:
        """[size] int64, shuffled; a clip is repeated only after all clips of its class."""
        rng = epoch_rng(self.seed, epoch)
        quotas = _systematic_counts(self.class_weights, self.size, rng)
        drawn = [
            np.concatenate([rng.permutation(items) for _ in range(-(-quota // len(items)))])[:quota]
            for items, quota in zip(self.members, quotas, strict=True)
            if quota
        ]
        return rng.permutation(np.concatenate(drawn))


def _systematic_counts(weights: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Integer counts summing to `size`, each within one of its expectation."""
    edges = np.cumsum(weights) / weights.sum() * size
    passed = np.floor(edges + rng.random()).astype(np.int64)
    passed[-1] = size  # the sum of many floats may miss it by one unit in the last place
    return np.diff(np.minimum(passed, size), prepend=0)


def _some(items: Sequence[Any]) -> Sequence[Any]:
    if len(items) == 0:
        raise DataError("nothing to sample: the set has no clips")
    return items


Schedule = Literal["paper", "mixed"]


class CurriculumSampler:
    """Curriculum learning (section IV-C, algorithm 3): easy clips first.

    Clips with one label are the single event set (SES), the others the multiple event set (MES).

    "paper" is algorithm 3: n epochs on SES, then 2n on MES. Later epochs stay on MES.

    "mixed" keeps the easy clips: every epoch has all of SES, and clips of MES are added, from none
    in the first epoch to all in the last of the 3n, those with fewer events first. The paper's
    introduction describes this ("gradually add the audio clips that include multiple events").
    """

    def __init__(
        self, label_counts: Sequence[int], n: int, *, schedule: Schedule = "paper", seed: int = 0
    ) -> None:
        """label_counts[i] is the number of labels of item i; n is the n of algorithm 3."""
        if n < 1:
            raise InputError(f"the curriculum's n must be 1 or more, not {n}")
        counts = np.asarray(label_counts, dtype=np.int64)
        self.n = n
        self.schedule = schedule
        self.seed = seed
        # A clip without labels has no second event, so it counts as easy.
        self.single = np.flatnonzero(counts <= 1)
        multiple = np.flatnonzero(counts > 1)
        for name, items in (("one label", self.single), ("several labels", multiple)):
            if len(items) == 0:
                raise DataError(
                    f"the curriculum needs clips with {name} and there are none; "
                    "train without a curriculum"
                )
        # Fewest events first; among equals a fixed random order, not the data set's.
        shuffled = np.random.default_rng(seed).permutation(multiple)
        self.multiple = shuffled[np.argsort(counts[shuffled], kind="stable")]

    def epoch_items(self, epoch: int) -> np.ndarray:
        """Dataset indices of this epoch (counted from 0), shuffled."""
        return np.random.default_rng([self.seed, epoch]).permutation(self._members(epoch))

    def _members(self, epoch: int) -> np.ndarray:
        if self.schedule == "paper":
            return self.single if epoch < self.n else self.multiple
        share = min(epoch / (3 * self.n - 1), 1.0)
        return np.concatenate([self.single, self.multiple[: round(share * len(self.multiple))]])


def collate(items: Sequence[Item]) -> Item:
    """Join items: arrays are stacked (`features` and `mask` zero-padded along their first axis),
    numbers become tensors, everything else becomes a list.
    """
    return {key: _join(key, [item[key] for item in items]) for key in items[0]}


def _join(key: str, values: list[Any]) -> Tensor | list[Any]:
    if isinstance(values[0], bool | int | float):
        return torch.tensor(values)
    if not isinstance(values[0], np.ndarray | Tensor):
        return values
    tensors = [torch.as_tensor(value) for value in values]
    if key in ("features", "mask"):
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)
    shapes = {tuple(tensor.shape) for tensor in tensors}
    if len(shapes) > 1:
        raise DataError(
            f"items of one batch have '{key}' of different shapes {sorted(shapes)}; "
            "give the loader bucket_by, or the dataset a fixed length"
        )
    return torch.stack(tensors)


# (epoch, position in the epoch, dataset index): with the seed, all an item depends on.
Address = tuple[int, int, int]


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
        bucket_by: Callable[[int], Hashable] | None = None,
        drop_last: bool = True,
    ) -> None:
        """bucket_by: the bucket of a dataset index (e.g. its length); a batch has one bucket.

        drop_last: leave out global batches that are not full (with buckets: the remainder of each,
        so a bucket with fewer clips than a global batch is never seen). If False, and a last batch
        has fewer items than there are ranks, the last ranks have one batch less.
        """
        self.sampler = sampler
        self.batch_size = batch_size
        self.rank, self.world = rank, world
        self.bucket_by = bucket_by
        self.drop_last = drop_last
        self._plan: list[list[Address]] = []
        # One DataLoader for all epochs: its workers stay alive, and it rereads the list each time.
        self._loader: DataLoader[Item] = DataLoader(
            _Addressed(dataset, seed),
            batch_sampler=self._plan,
            num_workers=workers,
            collate_fn=collate,
            persistent_workers=workers > 0,
            prefetch_factor=4 if workers > 0 else None,
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
        self._plan[:] = plan[start:]
        yield from self._loader

    def batches_in(self, epoch: int) -> int:
        """The number of batches this rank has in the epoch."""
        return len(self._epoch_plan(epoch))

    def _epoch_plan(self, epoch: int) -> list[list[Address]]:
        items = np.asarray(self.sampler.epoch_items(epoch), dtype=np.int64)
        size = self.batch_size * self.world
        groups = _grouped(items, size, self.bucket_by or (lambda index: 0))
        if self.drop_last:
            groups = [group for group in groups if len(group) == size]
            if not groups:
                raise DataError(
                    f"no full batch: {len(items)} clips in the epoch, {size} in a batch of all "
                    "ranks; use a smaller batch size or more clips"
                )
        mine = [group[self.rank :: self.world] for group in groups]
        return [[(epoch, at, int(items[at])) for at in group] for group in mine if group]


class _Addressed(Dataset[Item]):
    """Lets DataLoader workers fetch an item by its address."""

    def __init__(self, dataset: ClipDataset, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed

    def __getitem__(self, address: Address) -> Item:
        epoch, position, index = address
        return self.dataset.item(index, item_rng(self.seed, epoch, position))


def _grouped(items: np.ndarray, size: int, bucket_by: Callable[[int], Hashable]) -> list[list[int]]:
    """Positions grouped by bucket: full groups as they fill, the remainders at the end."""
    filling: dict[Hashable, list[int]] = {}
    groups: list[list[int]] = []
    for position, index in enumerate(items):
        key = bucket_by(int(index))
        bucket = filling.setdefault(key, [])
        bucket.append(position)
        if len(bucket) == size:
            groups.append(filling.pop(key))
    return groups + list(filling.values())


def _one_thread(worker: int) -> None:
    """Workers must not compete with the training process for its cores."""
    torch.set_num_threads(1)
