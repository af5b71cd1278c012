"""What a metric returns: a number with its interval, or the reason why there is none.

Intervals come from resampling clips. Beside them: how clips of known classes are named, how much
the clips of one class differ, and both together as one listener's opinion of several sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from diffsound.errors import InputError

RESAMPLES = 1000
LEVEL = 0.95
TOP = (1, 5)  # "recognised" means among this many likeliest classes
_CONFUSIONS = 20  # pairs of classes that a report lists


@dataclass(frozen=True)
class Score:
    """A metric's value; `None` means not available, and the note says why. Never NaN.

    better: which direction is better. low, high: the interval of the stated confidence.
    """

    name: str
    value: float | None
    better: str  # "lower" or "higher"
    low: float | None = None
    high: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        for number in (self.value, self.low, self.high):
            if number is not None and not math.isfinite(number):
                raise ValueError(f"{self.name} is not finite: {self}")

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.name}: not available ({self.note})"
        interval = "" if self.low is None else f" [{self.low:.4g}, {self.high:.4g}]"
        return f"{self.name}: {self.value:.4g}{interval}"

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


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

    groups: clips that belong together (several samples of one text) are drawn together, because
    their scores are not independent. None when there is only one group to draw from.
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
    """Interval of a distance between sets: the spread of its resamples, centred on `value`.

    statistic: takes one index array for each set. A resampled set repeats clips, which makes
    distances between sets systematically larger (the covariance loses rank). The resamples
    therefore tell how much a distance varies but not where it lies: their quantiles are shifted by
    the difference between their median and the value.
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
        raise InputError(f"a confidence level must be between 0 and 1, not {level}")
    return (1 - level) / 2, (1 + level) / 2


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities [N, classes] of logits."""
    logits = np.asarray(logits, dtype=np.float64)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def hits(logits: np.ndarray, targets: np.ndarray, k: int) -> np.ndarray:
    """Whether each clip's class is among the k likeliest: logits [N, classes] -> bool [N]."""
    best = np.argsort(-np.asarray(logits), axis=1, kind="stable")[:, :k]
    return np.asarray((best == targets[:, None]).any(axis=1))


def mean_score(
    name: str,
    values: np.ndarray,
    better: str = "higher",
    *,
    note: str = "",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Score:
    """The mean of `values` [N > 0] with its bootstrap interval."""
    values = np.asarray(values, dtype=np.float64)
    low, high = bootstrap_mean(values, resamples=resamples, seed=seed) or (None, None)
    return Score(name, float(values.mean()), better, low, high, note)


def balanced(right: np.ndarray, targets: np.ndarray, name: str, seed: int = 0) -> Score:
    """The mean over classes of the share of hits, with its interval; right bool [N]."""
    _, place = np.unique(targets, return_inverse=True)
    count = np.bincount(place)
    share = np.bincount(place, weights=right) / count
    # Classes are resampled, and then clips within each: how many of them are hits.
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(count), size=(RESAMPLES, len(count)))
    means = (rng.binomial(count[drawn], share[drawn]) / count[drawn]).mean(axis=1)
    low, high = np.quantile(means, _tails(LEVEL))
    return Score(name, float(share.mean()), "higher", float(low), float(high))


def spread(
    real: np.ndarray, real_of: np.ndarray, made: np.ndarray, made_of: np.ndarray
) -> dict[str, Any]:
    """How much two sounds of a class differ, relative to two real clips of it; mean over classes.

    real, made: features [N, D], [M, D]; real_of, made_of: their classes. 1: as varied as real
    clips; 0: always the same sound. Features are divided by their deviation over the real clips.
    Classes with fewer than two clips on either side do not count.
    """
    real, made = np.asarray(real), np.asarray(made)
    scale = 1.0 / np.maximum(real.std(axis=0), 1e-6)
    ratios = []
    for place in np.unique(made_of):
        ours = _mean_distance(made[made_of == place] * scale)
        theirs = _mean_distance(real[real_of == place] * scale)
        if ours is not None and theirs:
            ratios.append(ours / theirs)
    return {"ratio": float(np.mean(ratios)) if ratios else None, "classes": len(ratios)}


def confusion(logits: np.ndarray, targets: np.ndarray, classes: Sequence[int]) -> np.ndarray:
    """How often each of the classes was heard as each label: int [classes, labels].

    logits [N, labels]; targets [N]: places among the labels, all of them in `classes`.
    """
    counts = np.zeros((len(classes), logits.shape[1]), dtype=int)
    rows = {place: row for row, place in enumerate(classes)}
    for target, guess in zip(targets, np.argmax(logits, axis=1), strict=True):
        counts[rows[target], guess] += 1
    return counts


def _mean_distance(features: np.ndarray) -> float | None:
    """Mean Euclidean distance of two different rows of [N, D]; None for fewer than two."""
    if len(features) < 2:
        return None
    apart = np.linalg.norm(features[:, None] - features[None], axis=2)
    return float(apart.sum() / (len(features) * (len(features) - 1)))


@dataclass(frozen=True)
class Named:
    """What a listener made of a set: ids [N], features [N, D], logits [N, labels]."""

    ids: tuple[str, ...]
    features: np.ndarray
    logits: np.ndarray


@dataclass(frozen=True)
class Opinion:
    """What one listener made of every row.

    classes: those asked for, as places in the listener's own `labels`; targets: the place of each
    clip's class, int [N] by row.
    """

    labels: tuple[str, ...]
    classes: tuple[int, ...]
    heard: Mapping[str, Named]
    targets: Mapping[str, np.ndarray]
    scores: Mapping[str, Mapping[str, Score]]

    def to_json(self) -> dict[str, Any]:
        """The listener's part of a report."""
        rows = {
            row: {
                "scores": {name: score.to_json() for name, score in self.scores[row].items()},
                "clips": len(found.ids),
            }
            for row, found in self.heard.items()
        }
        real, made = (self.heard[row].features for row in ("real", "generated"))
        return {
            "rows": rows,
            "ratios": self._ratios(),
            "classes": self._by_class(),
            "spread": spread(real, self.targets["real"], made, self.targets["generated"]),
            "confusions": self._confusions(),
        }

    def confusion(self, row: str) -> np.ndarray:
        """How often each class asked for is heard as each label: int [classes, labels]."""
        return confusion(self.heard[row].logits, self.targets[row], self.classes)

    def _ratios(self) -> dict[str, dict[str, float | None]]:
        """Every row's shares relative to the real clips'."""
        names = [f"top-{k}" for k in TOP]
        value = {
            row: {name: scores[name].value or 0.0 for name in names}
            for row, scores in self.scores.items()
        }
        real = value.pop("real")
        return {
            row: {name: found[name] / real[name] if real[name] else None for name in names}
            for row, found in value.items()
        }

    def _by_class(self) -> list[dict[str, Any]]:
        """Each class's shares of hits, the worst of the generated ones first."""
        entries = []
        for place in self.classes:
            entry: dict[str, Any] = {"label": self.labels[place]}
            for row in ("real", "codec", "generated"):
                mine = self.targets[row] == place
                logits = np.asarray(self.heard[row].logits)[mine]
                entry[row] = {"clips": int(mine.sum())} | {
                    f"top-{k}": float(hits(logits, self.targets[row][mine], k).mean())
                    if len(logits)
                    else 0.0
                    for k in TOP
                }
            mine = self.targets["generated"] == place
            guesses = np.argmax(self.heard["generated"].logits[mine], axis=1)
            entry["heard_as"] = label_counts(self.labels, guesses)
            entries.append(entry)
        return sorted(entries, key=lambda e: (e["generated"]["top-1"], e["generated"]["top-5"]))

    def _confusions(self) -> list[dict[str, Any]]:
        """The pairs most often confused: asked for, heard as, how often."""
        pairs: list[dict[str, Any]] = [
            {"asked": self.labels[place], "heard": self.labels[guess], "times": int(times)}
            for place, line in zip(self.classes, self.confusion("generated"), strict=True)
            for guess, times in enumerate(line)
            if times and guess != place
        ]
        return sorted(pairs, key=lambda pair: -pair["times"])[:_CONFUSIONS]


def label_counts(labels: Sequence[str], guesses: np.ndarray) -> dict[str, int]:
    """How often each label was guessed, the commonest first; guesses: places in `labels` [N]."""
    places, counts = np.unique(guesses, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return {labels[places[i]]: int(counts[i]) for i in order}
