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
from typing import Any

import numpy as np

from diffsound.errors import InputError

RESAMPLES = 1000
LEVEL = 0.95
TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
FID_RESAMPLES = 100
# Each resample takes two eigendecompositions: an instant at 256 features, seconds at 2048.
_WIDEST_FOR_INTERVAL = 512
# The kernel distance's interval keeps all kernels in memory (200 MB at this number of clips).
_MOST_FOR_INTERVAL = 3000
_BLOCK = 1024  # clips per block of a distance matrix
NEAR, DENSE = 3, 5  # the neighbour that balls reach: precision, recall and realism; density

Interval = tuple[float, float] | tuple[None, None]


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
        return asdict(self)


def mean_score(
    name: str, values: np.ndarray | None, *, note: str = "", better: str = "higher",
    groups: Sequence[Hashable] | None = None, resamples: int = RESAMPLES, seed: int = 0,
) -> Score:  # fmt: skip
    """The mean of `values` [N > 0] with its percentile interval; None: not available.

    groups: clips that belong together (several samples of one text) are drawn together, because
    their scores are not independent. A single group has no interval.
    """
    if values is None:
        return Score(name, None, better, note=note)
    values = np.asarray(values, dtype=np.float64)
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups or ()))}
    keys = np.array([numbers[group] for group in groups]) if groups else np.arange(len(values))
    sums, counts = np.bincount(keys, values), np.bincount(keys)
    low = high = None
    if len(sums) > 1 and resamples:
        rng, means = np.random.default_rng(seed), np.empty(resamples)
        for at in range(resamples):
            drawn = rng.integers(len(sums), size=len(sums))
            means[at] = sums[drawn].sum() / counts[drawn].sum()
        low, high = np.quantile(means, TAILS).tolist()
    return Score(name, float(values.mean()), better, low, high, note)


def bootstrap_centred(
    statistic: Callable[..., float], value: float, sizes: Sequence[int], resamples: int, seed: int
) -> Interval:
    """Interval of a distance between sets: the spread of its resamples, centred on `value`.

    statistic: takes one index array for each set. A resampled set repeats clips, which makes
    distances systematically larger (the covariance loses rank). Resamples therefore show how much a
    distance varies but not where it lies, and their median is shifted to the value.
    """
    if min(sizes) < 2 or not resamples:
        return None, None
    rng = np.random.default_rng(seed)
    found = np.array(
        [statistic(*(rng.integers(size, size=size) for size in sizes)) for _ in range(resamples)]
    )
    low, middle, high = np.quantile(found, [TAILS[0], 0.5, TAILS[1]]).tolist()
    return value + low - middle, value + high - middle


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities [N, classes] of logits."""
    logits = np.asarray(logits, dtype=np.float64)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


@dataclass(frozen=True)
class Moments:
    """Of features: mean [D] and unbiased covariance [D, D], float64."""

    mean: np.ndarray
    covariance: np.ndarray


def moments(features: np.ndarray) -> Moments:
    """Mean and covariance of features [N, D]."""
    if len(features) < 2:
        raise InputError(f"a covariance needs at least 2 clips, not {len(features)}")
    centre = _finite(np.asarray(np.mean(features, axis=0, dtype=np.float64)))
    return Moments(centre, np.atleast_2d(np.cov(features, rowvar=False, dtype=np.float64)))


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
    values, vectors = np.linalg.eigh(real.covariance)
    root = (vectors * np.sqrt(_positive(values))) @ vectors.T
    product = root @ fake.covariance @ root
    shared = np.sqrt(_positive(np.linalg.eigvalsh((product + product.T) / 2))).sum()
    traces = np.trace(real.covariance) + np.trace(fake.covariance)
    return max(0.0, float(difference @ difference + traces - 2 * shared))


def _positive(values: np.ndarray) -> np.ndarray:
    """Eigenvalues with those that are rounding errors set to 0: their roots would not be small."""
    smallest = values.max(initial=0.0) * len(values) * np.finfo(np.float64).eps
    return np.where(values > smallest, values, 0.0)


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
    width = real.shape[1]
    needed, fewest = clips_needed(width), min(len(real), len(fake))
    few = (
        f"a {width}-wide feature needs at least {needed} clips in each set, there are "
        f"{len(real)} real and {len(fake)} generated"
    )
    if fewest < 2 or (fewest < needed and not allow_few):
        note = f"{few}; use the kernel distance, which is unbiased"
        return Score("FID", None, "lower", note=note)
    value = frechet_distance(moments(real), moments(fake))
    low, high = bootstrap_centred(
        lambda i, j: frechet_distance(moments(real[i]), moments(fake[j])),
        value,
        (len(real), len(fake)),
        resamples if width <= _WIDEST_FOR_INTERVAL else 0,
        seed,
    )
    note = f"{few}: compare only with sets of these sizes" if fewest < needed else ""
    return Score("FID", value, "lower", None if low is None else max(0.0, low), high, note)


def inception_score(
    probabilities: np.ndarray, *, resamples: int = RESAMPLES, seed: int = 0
) -> Score:
    """exp E KL(p(y|x) ‖ p(y)) of probabilities [N, classes]: between 1 and the classes."""
    p = _finite(np.asarray(probabilities, dtype=np.float64))
    if len(p) < 2:
        return Score("inception score", None, "higher", note=f"needs 2 clips, there is {len(p)}")
    p = p / p.sum(axis=1, keepdims=True)

    def x_log_x(x: np.ndarray) -> np.ndarray:
        return x * np.log(np.where(x > 0, x, 1.0))

    negative_entropy = x_log_x(p).sum(axis=1)

    def of(index: np.ndarray) -> float:
        return float(np.exp(negative_entropy[index].mean() - x_log_x(p[index].mean(axis=0)).sum()))

    value = of(np.arange(len(p)))
    low, high = bootstrap_centred(of, value, [len(p)], resamples, seed)
    return Score("inception score", value, "higher", None if low is None else max(1.0, low), high)


def kernel_distance(
    real: np.ndarray, fake: np.ndarray, *, resamples: int = 200, seed: int = 0
) -> Score:
    """Unbiased squared MMD of features [N, D], [M, D] under (x·y / D + 1)³ (KID, 1801.01401).

    Two samples of one distribution give a value around 0, of either sign.
    """
    real, fake = _finite(real), _finite(fake)
    if min(len(real), len(fake)) < 2:
        return Score("kernel distance", None, "lower", note="needs 2 clips in each set")
    between = _kernel_sum(real, fake) / (len(real) * len(fake))
    value = _mean_kernel_apart(real) + _mean_kernel_apart(fake) - 2 * between
    low: float | None
    high: float | None
    low = high = None
    if max(len(real), len(fake)) <= _MOST_FOR_INTERVAL and resamples:
        low, high = _kernel_interval(real, fake, value, resamples, seed)
    return Score("kernel distance", value, "lower", low, high)


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
) -> Interval:
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

    return bootstrap_centred(of, value, (len(real), len(fake)), resamples, seed)


def manifold_scores(
    real: np.ndarray, fake: np.ndarray, *, resamples: int = RESAMPLES, seed: int = 0
) -> list[Score]:
    """Precision, recall, density and coverage of features [N, D], [M, D].

    A set's manifold is the union of balls around its clips that reach their k-th neighbour.
    Precision and recall: shares of generated clips within the real manifold, and of real ones
    within the generated one (Kynkäänniemi et al. 2019, arXiv:1904.06991). Density and coverage: how
    many real balls a generated clip lies in (over k; it may exceed 1), and the share of real balls
    hit; robust to outliers among the generated clips (Naeem et al. 2020, arXiv:2002.09797).
    """
    real, fake = _finite(real), _finite(fake)
    found: dict[str, np.ndarray | None] = dict.fromkeys(
        ("precision", "recall", "density", "coverage")
    )
    near, dense = _too_few(NEAR, real, fake), _too_few(DENSE, real)
    if not near:
        found["precision"] = _within(fake, real, _radii(real, NEAR))[0] > 0
        found["recall"] = _within(real, fake, _radii(fake, NEAR))[0] > 0
    if not dense and len(fake):
        balls, found["coverage"] = _within(fake, real, _radii(real, DENSE))
        found["density"] = balls / DENSE
    notes = [near, near, dense, dense]
    return [
        mean_score(name, values, note=note, resamples=resamples, seed=seed)
        for (name, values), note in zip(found.items(), notes, strict=True)
    ]


def realism(real: np.ndarray, fake: np.ndarray) -> np.ndarray:
    """A score for each generated clip [M]: max over real clips of radius / distance.

    1 or more is within the real manifold (Kynkäänniemi et al., eq. 5); real clips whose balls are
    larger than the median are left out, as there, since one outlier's ball holds everything.
    """
    if few := _too_few(NEAR, real):
        raise InputError(few)
    radii = _radii(real, NEAR)
    kept = radii <= np.median(radii)
    best = np.empty(len(fake))
    for rows, distances in _distances(fake, real[kept]):
        best[rows] = (radii[kept] / np.maximum(distances, 1e-12)).max(axis=1)
    return np.minimum(best, 1e6)


def nearest(queries: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Position int [N] and distance [N] of each query's nearest neighbour among `others`."""
    places, found = np.empty(len(queries), dtype=np.int64), np.empty(len(queries))
    for rows, distances in _distances(queries, others):
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


def _too_few(neighbours: int, *sets: np.ndarray) -> str:
    fewest = min(len(features) for features in sets)
    needed = f"{neighbours} neighbours need more than {neighbours} clips, there are {fewest}"
    return "" if fewest > neighbours else needed


def _finite(values: np.ndarray) -> np.ndarray:
    if not np.isfinite(values).all():
        raise InputError("some features are not finite; the classifier or a clip is broken")
    return np.asarray(values)
