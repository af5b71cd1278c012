"""Which clips an epoch visits, in which order: pure functions of (seed, epoch).

A sampler keeps no state, so a run that was stopped is continued from two integers, the epoch and
the number of batches done in it; every rank computes the same order and takes its own share.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from diffsound.errors import ConfigError, DataError


def epoch_rng(seed: int, epoch: int) -> np.random.Generator:
    """The generator of one epoch's order; its third word keeps it apart from per-item ones."""
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


class WeightedSampler:
    """Items drawn in proportion to their weights, `size` per epoch.

    Systematic sampling: an item of expected count 1.3 is drawn once or twice, never 0 or 5 times,
    which independent draws would allow.
    """

    def __init__(self, weights: Sequence[float], seed: int = 0, size: int | None = None) -> None:
        self.weights = np.asarray(weights, dtype=np.float64)
        if self.weights.ndim != 1 or not np.isfinite(self.weights).all():
            raise ConfigError("sampling weights must be one finite number per clip")
        if (self.weights < 0).any() or self.weights.sum() <= 0:
            raise ConfigError("sampling weights must be non-negative and not all zero")
        self.size = _at_least_one(size if size is not None else len(self.weights))
        self.seed = seed

    def epoch_items(self, epoch: int) -> np.ndarray:
        """[size] int64, shuffled."""
        rng = epoch_rng(self.seed, epoch)
        counts = _systematic_counts(self.weights, self.size, rng)
        return rng.permutation(np.repeat(np.arange(len(counts)), counts))


class BalancedSampler:
    """Classes drawn in proportion to n_c^(1/temperature), clips evenly within their class.

    Temperature 1 is the data as it is, infinity gives every class the same share; between them rare
    classes are heard more often without repeating their few clips endlessly. `favour` multiplies
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
        """[size] int64, shuffled; a clip returns only after all of its class have been drawn."""
        rng = epoch_rng(self.seed, epoch)
        quotas = _systematic_counts(self.class_weights, self.size, rng)
        drawn = [
            _cycle(items, quota, rng)
            for items, quota in zip(self.members, quotas, strict=True)
            if quota
        ]
        return rng.permutation(np.concatenate(drawn))


def _cycle(items: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` draws that go through all items before any comes again."""
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
        raise DataError("there is nothing to sample: the set holds no clips")
    return count
