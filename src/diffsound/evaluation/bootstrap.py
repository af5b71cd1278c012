"""Confidence intervals by resampling clips."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np

from diffsound.errors import InputError

RESAMPLES = 1000
LEVEL = 0.95


class Interval(NamedTuple):
    low: float
    high: float


def bootstrap_mean(
    values: np.ndarray,
    *,
    groups: Sequence[Hashable] | None = None,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> Interval | None:
    """Percentile interval of the mean of `values` [N].

    groups: clips that belong together (several samples of one text) are drawn together, for their
    scores are not independent. None when there is only one group to draw from.
    """
    values = np.asarray(values, dtype=np.float64)
    keys = np.arange(len(values))
    if groups is not None:
        numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
        keys = np.array([numbers[group] for group in groups])
    sums, counts = np.bincount(keys, values), np.bincount(keys)
    if len(sums) < 2 or resamples < 1:
        return None
    rng = np.random.default_rng(seed)
    means = np.empty(resamples)
    for at in range(resamples):
        drawn = rng.integers(len(sums), size=len(sums))
        means[at] = sums[drawn].sum() / counts[drawn].sum()
    return Interval(*np.quantile(means, _tails(level)).tolist())


def bootstrap_centred(
    statistic: Callable[..., float],
    value: float,
    sizes: Sequence[int],
    *,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> Interval | None:
    """Interval of a distance between sets: the spread of its resamples, laid around `value`.

    statistic: of one index array for each set. A resampled set repeats clips, which makes
    distances between sets systematically larger (a set's covariance loses rank), so the resamples
    tell how much a distance scatters but not where it lies: their quantiles are shifted by the
    difference between their median and the value.
    """
    if min(sizes) < 2 or resamples < 1:
        return None
    rng = np.random.default_rng(seed)
    found = np.array(
        [statistic(*(rng.integers(size, size=size) for size in sizes)) for _ in range(resamples)]
    )
    low, middle, high = np.quantile(found, [_tails(level)[0], 0.5, _tails(level)[1]]).tolist()
    return Interval(value + low - middle, value + high - middle)


def _tails(level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise InputError(f"a confidence level lies between 0 and 1, not {level}")
    return (1 - level) / 2, (1 + level) / 2
