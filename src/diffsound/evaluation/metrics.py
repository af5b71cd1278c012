"""Scores with intervals, and the distances between sets of clips.

Each distance is blind to something, so read them together:
FID (eq. 27): Fréchet distance between Gaussians fitted to real and generated features.
Kernel distance: like FID but unbiased, so it can be trusted with few clips.
Inception score: is each clip clearly something, and is the set varied? Ignores real clips.
Precision, density: do generated clips lie where real ones are? Recall, coverage: do they reach
everywhere real ones are?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from diffsound.errors import InputError

RESAMPLES = 1000
LEVEL = 0.95
TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
FID_RESAMPLES = 100
# Each resample takes two eigendecompositions: an instant at 256 features, seconds at 2048.
_WIDEST_FOR_INTERVAL = 512
# The time for pairwise distances grows with the square of the clips; beyond this number, a random
# subset stands for its set.
MOST_CLIPS = 10_000
# The kernel distance's interval keeps all kernels in memory (200 MB at this number).
_MOST_FOR_INTERVAL = 3000
_BLOCK = 1024  # clips per block of a distance matrix or of a covariance
NEAR, DENSE = 3, 5  # the neighbour that balls reach: precision, recall and realism; density


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
    return Interval(*np.quantile(means, TAILS).tolist())


def bootstrap_centred(
    statistic: Callable[..., float],
    value: float,
    sizes: Sequence[int],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval | None:
    """Interval of a distance between sets: the spread of its resamples, centred on `value`.

    statistic: takes one index array for each set. A resampled set repeats clips, which makes
    distances systematically larger (the covariance loses rank). Resamples therefore show how much a
    distance varies but not where it lies, and their median is shifted to the value.
    """
    if min(sizes) < 2 or resamples < 1:
        return None
    rng = np.random.default_rng(seed)
    found = np.array(
        [statistic(*(rng.integers(size, size=size) for size in sizes)) for _ in range(resamples)]
    )
    low, middle, high = np.quantile(found, [TAILS[0], 0.5, TAILS[1]]).tolist()
    return Interval(value + low - middle, value + high - middle)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities [N, classes] of logits."""
    logits = np.asarray(logits, dtype=np.float64)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def mean_score(
    name: str, values: np.ndarray | None, *, note: str = "", better: str = "higher",
    groups: Sequence[Hashable] | None = None, resamples: int = RESAMPLES, seed: int = 0,
) -> Score:  # fmt: skip
    """The mean of `values` [N > 0] with its bootstrap interval; None: not available."""
    if values is None:
        return Score(name, None, better, note=note)
    values = np.asarray(values, dtype=np.float64)
    interval = bootstrap_mean(values, groups=groups, resamples=resamples, seed=seed)
    low, high = interval or (None, None)
    return Score(name, float(values.mean()), better, low, high, note)


@dataclass(frozen=True)
class Moments:
    """Of N features: mean [D] and unbiased covariance [D, D], float64."""

    count: int
    mean: np.ndarray
    covariance: np.ndarray


def moments(features: np.ndarray) -> Moments:
    """Mean and covariance of features [N, D], chunk by chunk (they may lie in a mapped file)."""
    count, width = features.shape
    if count < 2:
        raise InputError(f"a covariance needs at least 2 clips, not {count}")
    mean = np.zeros(width)
    for chunk in _chunks(features):
        mean += chunk.sum(axis=0)
    mean /= count
    covariance = np.zeros((width, width))
    for chunk in _chunks(features):
        centred = chunk - mean
        covariance += centred.T @ centred
    covariance /= count - 1
    _check_finite(covariance)
    return Moments(count, mean, covariance)


def frechet_distance(real: Moments, fake: Moments) -> float:
    """|m_r - m_f|² + Tr(C_r + C_f - 2 (C_r C_f)^½), eq. 27; at least 0.

    The trace of the root is the sum of the roots of the eigenvalues of C_r^½ C_f C_r^½, which is
    symmetric: no complex rounding errors, and singular covariances are no special case.
    """
    if real.mean.shape != fake.mean.shape:
        raise InputError(
            f"features of {len(real.mean)} and of {len(fake.mean)} numbers cannot be compared"
        )
    difference = real.mean - fake.mean
    root = _root(real.covariance)
    product = root @ fake.covariance @ root
    shared = np.sqrt(_positive(np.linalg.eigvalsh((product + product.T) / 2))).sum()
    traces = np.trace(real.covariance) + np.trace(fake.covariance)
    return max(0.0, float(difference @ difference + traces - 2 * shared))


def clips_needed(width: int) -> int:
    """Clips in each set for a covariance of full rank; with fewer, FID is too large."""
    return width + 1


def fid(
    real: np.ndarray,
    fake: np.ndarray,
    *,
    allow_few: bool = False,
    resamples: int = FID_RESAMPLES,
    seed: int = 0,
) -> Score:
    """FID of features [N, D] and [M, D]; not available with too few clips, unless `allow_few`.

    allow_few: give the number anyway (the published protocol: 494 real clips for 2048 features);
    it is then comparable only with sets of the same sizes, and the note says so.
    """
    needed, fewest = clips_needed(real.shape[1]), min(len(real), len(fake))
    few = (
        f"a {real.shape[1]}-wide feature needs at least {needed} clips in each set, there are "
        f"{len(real)} real and {len(fake)} generated"
    )
    if fewest < 2 or (fewest < needed and not allow_few):
        note = f"{few}; use the kernel distance, which is unbiased"
        return Score("FID", None, "lower", note=note)
    value = frechet_distance(moments(real), moments(fake))
    interval = None
    if real.shape[1] <= _WIDEST_FOR_INTERVAL:
        sizes = (len(real), len(fake))
        interval = bootstrap_centred(
            lambda i, j: frechet_distance(moments(real[i]), moments(fake[j])),
            value, sizes, resamples=resamples, seed=seed,
        )  # fmt: skip
    low, high = (max(0.0, interval.low), interval.high) if interval else (None, None)
    note = f"{few}: compare only with sets of these sizes" if fewest < needed else ""
    return Score("FID", value, "lower", low, high, note)


def inception_score(
    probabilities: np.ndarray, *, resamples: int = RESAMPLES, seed: int = 0
) -> Score:
    """exp E KL(p(y|x) ‖ p(y)) of probabilities [N, classes]: between 1 and the classes."""
    p = np.asarray(probabilities, dtype=np.float64)
    if len(p) < 2:
        return Score("inception score", None, "higher", note=f"needs 2 clips, there is {len(p)}")
    _check_finite(p)
    p = p / p.sum(axis=1, keepdims=True)
    negative_entropy = _x_log_x(p).sum(axis=1)

    def of(index: np.ndarray) -> float:
        return float(np.exp(negative_entropy[index].mean() - _x_log_x(p[index].mean(axis=0)).sum()))

    value = of(np.arange(len(p)))
    interval = bootstrap_centred(of, value, [len(p)], resamples=resamples, seed=seed)
    low, high = (max(1.0, interval.low), interval.high) if interval else (None, None)
    return Score("inception score", value, "higher", low, high)


def kernel_distance(
    real: np.ndarray, fake: np.ndarray, *, resamples: int = 200, seed: int = 0
) -> Score:
    """Unbiased squared MMD of features [N, D], [M, D] under (x·y / D + 1)³ (KID, 1801.01401).

    Two samples of one distribution give a value around 0, of either sign.
    """
    real, fake = _subset(real, seed), _subset(fake, seed)
    if min(len(real), len(fake)) < 2:
        return Score("kernel distance", None, "lower", note="needs 2 clips in each set")
    between = _kernel_sum(real, fake) / (len(real) * len(fake))
    value = _mean_kernel_apart(real) + _mean_kernel_apart(fake) - 2 * between
    interval = None
    if max(len(real), len(fake)) <= _MOST_FOR_INTERVAL and resamples:
        interval = _kernel_interval(real, fake, value, resamples, seed)
    low, high = interval or (None, None)
    return Score("kernel distance", value, "lower", low, high, _subset_note(real, fake))


def precision_recall(
    real: np.ndarray, fake: np.ndarray, *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[Score, Score]:
    """Share of generated clips within the real manifold, and of real within the generated one.

    A set's manifold is the union of balls around its clips that reach their k-th neighbour
    (Kynkäänniemi et al. 2019, arXiv:1904.06991).
    """
    real, fake = _subset(real, seed), _subset(fake, seed)
    inside = reached = None
    few = _too_few(NEAR, real, fake)
    if not few:
        inside = _within(fake, real, _radii(real, NEAR))[0] > 0
        reached = _within(real, fake, _radii(fake, NEAR))[0] > 0
    note = few or _subset_note(real, fake)
    return (
        mean_score("precision", inside, note=note, resamples=resamples, seed=seed),
        mean_score("recall", reached, note=note, resamples=resamples, seed=seed),
    )


def density_coverage(
    real: np.ndarray, fake: np.ndarray, *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[Score, Score]:
    """How many real balls a generated clip lies in (over k), and the share of real balls hit.

    Robust to outliers among the generated clips, unlike recall (Naeem et al. 2020,
    arXiv:2002.09797). Density may exceed 1.
    """
    real, fake = _subset(real, seed), _subset(fake, seed)
    density = coverage = None
    few = _too_few(DENSE, real) or ("" if len(fake) else "there is no generated clip")
    if not few:
        balls, coverage = _within(fake, real, _radii(real, DENSE))
        density = balls / DENSE
    note = few or _subset_note(real, fake)
    return (
        mean_score("density", density, note=note, resamples=resamples, seed=seed),
        mean_score("coverage", coverage, note=note, resamples=resamples, seed=seed),
    )


def realism(real: np.ndarray, fake: np.ndarray) -> np.ndarray:
    """A score for each generated clip [M]: max over real clips of radius / distance.

    1 or more is within the real manifold (Kynkäänniemi et al., eq. 5); real clips whose balls are
    larger than the median are left out, as there, since one outlier's ball holds everything.
    """
    few = _too_few(NEAR, real)
    if few:
        raise InputError(few)
    radii = _radii(real, NEAR)
    kept = radii <= np.median(radii)
    best = np.empty(len(fake))
    for rows, distances in _distances(fake, real[kept]):
        best[rows] = (radii[kept] / np.maximum(distances, 1e-12)).max(axis=1)
    return np.minimum(best, 1e6)


def nearest(
    queries: np.ndarray, others: np.ndarray, *, itself: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Position int [N] and distance [N] of each query's nearest neighbour among `others`.

    itself: queries and others are one set, and a clip is not its own neighbour.
    """
    places, found = np.empty(len(queries), dtype=np.int64), np.empty(len(queries))
    for rows, distances in _distances(queries, others):
        if itself:
            distances[np.arange(len(distances)), np.arange(rows.start, rows.stop)] = np.inf
        places[rows] = distances.argmin(axis=1)
        found[rows] = distances.min(axis=1)
    return places, found


def _within(
    points: np.ndarray, centres: np.ndarray, radii: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """How many balls hold each point [points], and which balls hold a point [balls]."""
    balls, used = np.zeros(len(points)), np.zeros(len(centres))
    for rows, distances in _distances(points, centres):
        inside = distances <= radii
        balls[rows] = inside.sum(axis=1)
        used = np.maximum(used, inside.any(axis=0))
    return balls, used


def _radii(points: np.ndarray, neighbours: int) -> np.ndarray:
    """Distance of each point to its k-th neighbour, itself not counted."""
    radii = np.empty(len(points))
    for rows, distances in _distances(points, points):
        # The diagonal is a point's distance to itself: 0 but for rounding, and the smallest.
        distances[np.arange(len(distances)), np.arange(rows.start, rows.stop)] = 0.0
        radii[rows] = np.partition(distances, neighbours, axis=1)[:, neighbours]
    return radii


def _distances(first: np.ndarray, second: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Euclidean distances of blocks of `first` to all of `second`, float64 [block, M]."""
    second = np.asarray(second, dtype=np.float64)
    squares = np.square(second).sum(axis=1)
    for at in range(0, len(first), _BLOCK):
        block = np.asarray(first[at : at + _BLOCK], dtype=np.float64)
        found = np.square(block).sum(axis=1)[:, None] + squares - 2 * block @ second.T
        yield slice(at, at + len(block)), np.sqrt(np.maximum(found, 0.0))


def _kernel(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray((x.astype(np.float64) @ y.astype(np.float64).T / x.shape[1] + 1.0) ** 3)


def _kernel_sum(x: np.ndarray, y: np.ndarray) -> float:
    return float(sum(_kernel(x[at : at + _BLOCK], y).sum() for at in range(0, len(x), _BLOCK)))


def _mean_kernel_apart(x: np.ndarray) -> float:
    """Mean kernel of the pairs of different clips of one set."""
    own = ((np.square(x, dtype=np.float64).sum(axis=1) / x.shape[1] + 1.0) ** 3).sum()
    return float((_kernel_sum(x, x) - own) / (len(x) * (len(x) - 1)))


def _kernel_interval(
    real: np.ndarray, fake: np.ndarray, value: float, resamples: int, seed: int
) -> tuple[float, float] | None:
    """Resamples as weights of the clips, so that a clip drawn twice is no pair with itself."""
    among_real, among_fake, between = _kernel(real, real), _kernel(fake, fake), _kernel(real, fake)
    np.fill_diagonal(among_real, 0.0)
    np.fill_diagonal(among_fake, 0.0)

    def apart(kernel: np.ndarray, weights: np.ndarray) -> float:
        pairs = weights.sum() ** 2 - np.square(weights).sum()
        return float(weights @ kernel @ weights / max(pairs, 1.0))

    def of(i: np.ndarray, j: np.ndarray) -> float:
        a = np.bincount(i, minlength=len(real)).astype(np.float64)
        b = np.bincount(j, minlength=len(fake)).astype(np.float64)
        mixed = float(a @ between @ b / (a.sum() * b.sum()))
        return apart(among_real, a) + apart(among_fake, b) - 2 * mixed

    return bootstrap_centred(of, value, (len(real), len(fake)), resamples=resamples, seed=seed)


def _subset(features: np.ndarray, seed: int) -> np.ndarray:
    if len(features) > MOST_CLIPS:
        rows = np.random.default_rng(seed).choice(len(features), MOST_CLIPS, replace=False)
        features = features[np.sort(rows)]
    _check_finite(features)
    return np.asarray(features)


def _subset_note(*sets: np.ndarray) -> str:
    cut = any(len(features) == MOST_CLIPS for features in sets)
    return f"on a random {MOST_CLIPS} clips of each larger set" if cut else ""


def _too_few(neighbours: int, *sets: np.ndarray) -> str:
    fewest = min(len(features) for features in sets)
    needed = f"{neighbours} neighbours need more than {neighbours} clips, there are {fewest}"
    return "" if fewest > neighbours else needed


def _check_finite(values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        raise InputError("some features are not finite; the classifier or a clip is broken")


def _x_log_x(p: np.ndarray) -> np.ndarray:
    return p * np.log(np.where(p > 0, p, 1.0))


def _root(covariance: np.ndarray) -> np.ndarray:
    """The symmetric square root of a positive semi-definite matrix."""
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.sqrt(_positive(values))) @ vectors.T


def _positive(values: np.ndarray) -> np.ndarray:
    """Eigenvalues with those that are rounding errors set to 0: their roots would not be small."""
    smallest = values.max(initial=0.0) * len(values) * np.finfo(np.float64).eps
    return np.where(values > smallest, values, 0.0)


def _chunks(features: np.ndarray) -> Iterator[np.ndarray]:
    for at in range(0, len(features), _BLOCK):
        yield np.asarray(features[at : at + _BLOCK], dtype=np.float64)
