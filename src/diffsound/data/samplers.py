"""Which clips an epoch has and in which order: pure functions of (seed, epoch).

A sampler has no state, so a stopped run resumes from two integers, the epoch and the number of
batches done in it. Every rank computes the same order and takes its own share.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Literal

import numpy as np

from diffsound.errors import ConfigError, DataError, InputError


def epoch_rng(seed: int, epoch: int) -> np.random.Generator:
    """The generator of an epoch's order; its third word keeps it distinct from per-item ones."""
    return np.random.default_rng([seed, epoch, 0x0DDE])


class SequentialSampler:
    """Every item once, in the order of the dataset: for validation."""

    def __init__(self, count: int) -> None:
        self.count = _at_least_one(count)

    def epoch_items(self, epoch: int) -> np.ndarray:
        """[count] int64, the same for every epoch."""
        return np.arange(self.count)


class ShuffledSampler:
    """Every item once per epoch, in a fresh order."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.count = _at_least_one(count)
        self.seed = seed

    def epoch_items(self, epoch: int) -> np.ndarray:
        """[count] int64, a permutation."""
        return epoch_rng(self.seed, epoch).permutation(self.count)


class BalancedSampler:
    """Classes drawn in proportion to n_c^(1/temperature), clips evenly within their class.

    Temperature 1 keeps the data's shares, infinity gives every class the same share. Values between
    make rare classes more frequent without repeating their few clips endlessly. `favour` multiplies
    the share of a class.
    """

    def __init__(
        self,
        labels: Sequence[Hashable],
        seed: int = 0,
        *,
        temperature: float = 2.0,
        size: int | None = None,
        favour: Callable[[Hashable], float] | None = None,
    ) -> None:
        if temperature < 1:
            raise ConfigError(f"the balancing temperature must be at least 1, not {temperature}")
        members: dict[Hashable, list[int]] = {}
        for item, label in enumerate(labels):
            members.setdefault(label, []).append(item)
        self.members = [np.asarray(items) for items in members.values()]
        self.size = _at_least_one(size if size is not None else len(labels))
        self.seed = seed
        counts = np.array([len(items) for items in self.members], dtype=np.float64)
        self.class_weights = counts ** (1.0 / temperature)
        if favour is not None:
            self.class_weights *= [favour(label) for label in members]

    def epoch_items(self, epoch: int) -> np.ndarray:
        """[size] int64, shuffled; a clip is repeated only after all clips of its class."""
        rng = epoch_rng(self.seed, epoch)
        quotas = _systematic_counts(self.class_weights, self.size, rng)
        drawn = [
            _cycle(items, quota, rng)
            for items, quota in zip(self.members, quotas, strict=True)
            if quota
        ]
        return rng.permutation(np.concatenate(drawn))


def _cycle(items: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` draws that use all items before any is repeated."""
    rounds = -(-count // len(items))
    return np.concatenate([rng.permutation(items) for _ in range(rounds)])[:count]


def _systematic_counts(weights: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Integer counts summing to `size`, each within one of its expectation."""
    edges = np.cumsum(weights) / weights.sum() * size
    edges[-1] = size  # the sum of many floats may miss it by one unit in the last place
    passed = np.floor(edges + rng.random()).astype(np.int64)
    passed[-1] = size
    return np.diff(np.minimum(passed, size), prepend=0)


def _at_least_one(count: int) -> int:
    if count < 1:
        raise DataError("nothing to sample: the set has no clips")
    return count


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
        self,
        label_counts: Sequence[int],
        n: int,
        *,
        schedule: Schedule = "paper",
        seed: int = 0,
    ) -> None:
        """label_counts[i] is the number of labels of item i; n is the n of algorithm 3."""
        if n < 1:
            raise InputError(f"the curriculum's n must be 1 or more, not {n}")
        if schedule not in ("paper", "mixed"):
            raise InputError(f"the curriculum is 'paper' or 'mixed', not '{schedule}'")
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

    @property
    def epochs(self) -> int:
        """The length of the curriculum, 3n."""
        return 3 * self.n

    def epoch_items(self, epoch: int) -> list[int]:
        """Dataset indices of this epoch (counted from 0), shuffled."""
        if epoch < 0:
            raise InputError(f"epochs are counted from 0; there is no epoch {epoch}")
        items = self._members(epoch)
        order: list[int] = np.random.default_rng([self.seed, epoch]).permutation(items).tolist()
        return order

    def _members(self, epoch: int) -> np.ndarray:
        if self.schedule == "paper":
            return self.single if epoch < self.n else self.multiple
        share = min(epoch / (self.epochs - 1), 1.0)
        return np.concatenate([self.single, self.multiple[: round(share * len(self.multiple))]])
