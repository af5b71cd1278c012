"""Distances between sets of clips; each is blind to something, so read them together.

FID (eq. 27): Fréchet distance between Gaussians fitted to real and generated features.
Kernel distance: like FID but unbiased, so it can be trusted with few clips.
Inception score: is each clip clearly something, and is the set varied? Sees no real clips.
Precision, density: do generated clips lie where real ones are? Recall, coverage: do they reach
everywhere real ones are?
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from diffsound.errors import InputError
from diffsound.evaluation.scores import RESAMPLES, Score, bootstrap_centred, mean_score

FID_RESAMPLES = 100
# Each resample takes two eigendecompositions: an instant at 256 features, seconds at 2048.
_WIDEST_FOR_INTERVAL = 512
# The time for pairwise distances grows with the square of the clips; beyond this number, a random
# subset stands for its set.
MOST_CLIPS = 10_000
# The kernel distance's interval keeps all kernels in memory (200 MB at this number).
_MOST_FOR_INTERVAL = 3000
_BLOCK = 1024  # clips per block of a distance matrix or of a covariance


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
    if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
        raise InputError("some features are not finite; the classifier or a clip is broken")
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
    """Clips in each set for a covariance of full rank; fewer make FID too large and unstable."""
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
    name, needed, fewest = "FID", clips_needed(real.shape[1]), min(len(real), len(fake))
    few = (
        f"a {real.shape[1]}-wide feature needs at least {needed} clips in each set, there are "
        f"{len(real)} real and {len(fake)} generated"
    )
    if fewest < 2 or (fewest < needed and not allow_few):
        return Score(name, None, "lower", note=f"{few}; use the kernel distance, which is unbiased")
    value = frechet_distance(moments(real), moments(fake))
    interval = None
    if real.shape[1] <= _WIDEST_FOR_INTERVAL:
        interval = bootstrap_centred(
            lambda i, j: frechet_distance(moments(real[i]), moments(fake[j])),
            value,
            (len(real), len(fake)),
            resamples=resamples,
            seed=seed,
        )
    low, high = (max(0.0, interval.low), interval.high) if interval else (None, None)
    note = f"{few}: compare only with sets of these sizes" if fewest < needed else ""
    return Score(name, value, "lower", low, high, note)


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

    Unbiased, so two samples of one distribution give a value around 0, of either sign.
    """
    real, fake = _subset(real, seed), _subset(fake, seed)
    if min(len(real), len(fake)) < 2:
        note = f"needs 2 clips in each set, there are {len(real)} and {len(fake)}"
        return Score("kernel distance", None, "lower", note=note)
    value = (
        _mean_kernel_apart(real) + _mean_kernel_apart(fake) - 2 * _mean_kernel_between(real, fake)
    )
    interval = None
    if max(len(real), len(fake)) <= _MOST_FOR_INTERVAL and resamples:
        interval = _kernel_interval(real, fake, value, resamples, seed)
    low, high = interval or (None, None)
    return Score("kernel distance", value, "lower", low, high, _subset_note(real, fake))


def precision_recall(
    real: np.ndarray,
    fake: np.ndarray,
    *,
    neighbours: int = 3,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[Score, Score]:
    """Share of generated clips within the real manifold, and of real within the generated one.

    A set's manifold is the union of balls around its clips that reach their k-th neighbour
    (Kynkäänniemi et al. 2019, arXiv:1904.06991).
    """
    real, fake = _subset(real, seed), _subset(fake, seed)
    few = _too_few(neighbours, real, fake)
    if few:
        return Score("precision", None, "higher", note=few), Score(
            "recall", None, "higher", note=few
        )
    inside = _within(fake, real, _radii(real, neighbours)).any_ball
    reached = _within(real, fake, _radii(fake, neighbours)).any_ball
    note = _subset_note(real, fake)
    return (
        mean_score("precision", inside, note=note, resamples=resamples, seed=seed),
        mean_score("recall", reached, note=note, resamples=resamples, seed=seed),
    )


def density_coverage(
    real: np.ndarray,
    fake: np.ndarray,
    *,
    neighbours: int = 5,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[Score, Score]:
    """How many real balls a generated clip lies in (over k), and how many real balls hold one.

    Robust to outliers among the generated clips, as recall is not (Naeem et al. 2020,
    arXiv:2002.09797). Density may exceed 1.
    """
    real, fake = _subset(real, seed), _subset(fake, seed)
    few = _too_few(neighbours, real)
    if few or not len(fake):
        note = few or "there is no generated clip"
        return Score("density", None, "higher", note=note), Score(
            "coverage", None, "higher", note=note
        )
    found = _within(fake, real, _radii(real, neighbours))
    note = _subset_note(real, fake)
    return (
        mean_score("density", found.balls / neighbours, note=note, resamples=resamples, seed=seed),
        mean_score("coverage", found.ball_used, note=note, resamples=resamples, seed=seed),
    )


def realism(real: np.ndarray, fake: np.ndarray, *, neighbours: int = 3) -> np.ndarray:
    """A score for each generated clip [M]: max over real clips of radius / distance.

    1 or more is within the real manifold (Kynkäänniemi et al., eq. 5); real clips whose balls are
    larger than the median are left out, as there, since one outlier's ball holds everything.
    """
    few = _too_few(neighbours, real)
    if few:
        raise InputError(few)
    radii = _radii(real, neighbours)
    kept = radii <= np.median(radii)
    best = np.empty(len(fake))
    for rows, distances in _distances(fake, real[kept]):
        best[rows] = (radii[kept] / np.maximum(distances, 1e-12)).max(axis=1)
    return np.minimum(best, 1e6)


def nearest(
    queries: np.ndarray, others: np.ndarray, *, itself: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Position and distance of each query's nearest among `others`: int [N], float64 [N].

    itself: queries and others are one set, and a clip is not its own neighbour.
    """
    places, found = np.empty(len(queries), dtype=np.int64), np.empty(len(queries))
    for rows, distances in _distances(queries, others):
        if itself:
            distances[np.arange(len(distances)), np.arange(rows.start, rows.stop)] = np.inf
        places[rows] = distances.argmin(axis=1)
        found[rows] = distances.min(axis=1)
    return places, found


class _Within:
    """Which points lie in which balls: any_ball, balls [points]; ball_used [balls]."""

    def __init__(self, points: int, balls: int) -> None:
        self.balls = np.zeros(points)
        self.ball_used = np.zeros(balls)

    @property
    def any_ball(self) -> np.ndarray:
        return (self.balls > 0).astype(np.float64)


def _within(points: np.ndarray, centres: np.ndarray, radii: np.ndarray) -> _Within:
    found = _Within(len(points), len(centres))
    for rows, distances in _distances(points, centres):
        inside = distances <= radii
        found.balls[rows] = inside.sum(axis=1)
        found.ball_used = np.maximum(found.ball_used, inside.any(axis=0))
    return found


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


def _mean_kernel_apart(x: np.ndarray) -> float:
    """Mean kernel of the pairs of different clips of one set."""
    total = sum(_kernel(x[at : at + _BLOCK], x).sum() for at in range(0, len(x), _BLOCK))
    own = ((np.square(x, dtype=np.float64).sum(axis=1) / x.shape[1] + 1.0) ** 3).sum()
    return float((total - own) / (len(x) * (len(x) - 1)))


def _mean_kernel_between(x: np.ndarray, y: np.ndarray) -> float:
    total = sum(_kernel(x[at : at + _BLOCK], y).sum() for at in range(0, len(x), _BLOCK))
    return float(total / (len(x) * len(y)))


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
    features = np.asarray(features)
    _check_finite(features)
    return features


def _subset_note(*sets: np.ndarray) -> str:
    cut = any(len(features) == MOST_CLIPS for features in sets)
    return f"on a random {MOST_CLIPS} clips of each larger set" if cut else ""


def _too_few(neighbours: int, *sets: np.ndarray) -> str:
    fewest = min(len(features) for features in sets)
    if fewest > neighbours:
        return ""
    return f"{neighbours} neighbours need more than {neighbours} clips, there are {fewest}"


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
