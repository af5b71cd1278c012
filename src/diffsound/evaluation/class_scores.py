"""How clips of known classes are named, and how much those of one class differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from diffsound.evaluation.bootstrap import LEVEL, RESAMPLES
from diffsound.evaluation.features import FeatureSet
from diffsound.evaluation.score import Score


def hits(logits: np.ndarray, targets: np.ndarray, k: int) -> np.ndarray:
    """Whether each clip's class is among the k likeliest: logits [N, classes] -> bool [N]."""
    best = np.argsort(-np.asarray(logits), axis=1, kind="stable")[:, :k]
    return np.asarray((best == targets[:, None]).any(axis=1))


def balanced(right: np.ndarray, targets: np.ndarray, name: str, seed: int = 0) -> Score:
    """The mean over classes of the share of hits, with its interval; right bool [N]."""
    _, place = np.unique(targets, return_inverse=True)
    count = np.bincount(place)
    share = np.bincount(place, weights=right) / count
    # Classes are drawn anew, and then clips within each: how many of them are hits.
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(count), size=(RESAMPLES, len(count)))
    means = (rng.binomial(count[drawn], share[drawn]) / count[drawn]).mean(axis=1)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, (tail, 1 - tail))
    return Score(name, float(share.mean()), "higher", float(low), float(high))


def spread(
    real: FeatureSet, real_of: np.ndarray, made: FeatureSet, made_of: np.ndarray
) -> dict[str, Any]:
    """Mean distance of two sounds of a class over that of two real clips of it, by classes.

    1: as varied as real clips; 0: always the same sound. Features are divided by their deviation
    over the real clips. Classes with fewer than two clips on either side do not count.
    """
    scale = 1.0 / np.maximum(np.asarray(real.features).std(axis=0), 1e-6)
    ratios = []
    for place in np.unique(made_of):
        ours = _mean_distance(made.features[made_of == place] * scale)
        theirs = _mean_distance(real.features[real_of == place] * scale)
        if ours is not None and theirs:
            ratios.append(ours / theirs)
    return {"ratio": float(np.mean(ratios)) if ratios else None, "classes": len(ratios)}


def confusion(found: FeatureSet, targets: np.ndarray, classes: Sequence[int]) -> np.ndarray:
    """How often each of the classes was heard as each label: int [classes, labels]."""
    counts = np.zeros((len(classes), found.logits.shape[1]), dtype=int)
    rows = {place: row for row, place in enumerate(classes)}
    for target, guess in zip(targets, np.argmax(found.logits, axis=1), strict=True):
        counts[rows[target], guess] += 1
    return counts


def _mean_distance(features: np.ndarray) -> float | None:
    """Mean Euclidean distance of two different rows of [N, D]; None for fewer than two."""
    if len(features) < 2:
        return None
    apart = np.linalg.norm(features[:, None] - features[None], axis=2)
    return float(apart.sum() / (len(features) * (len(features) - 1)))
