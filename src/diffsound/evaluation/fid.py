"""Fréchet distance between classifier features of real and generated clips (eq. 25)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from diffsound.errors import InputError
from diffsound.evaluation.bootstrap import bootstrap_centred
from diffsound.evaluation.score import Score

_CHUNK = 4096
FID_RESAMPLES = 100
# Two eigendecompositions for each resample: an instant at 256 features, seconds at 2048.
_WIDEST_FOR_INTERVAL = 512


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
    """|m_r - m_f|² + Tr(C_r + C_f - 2 (C_r C_f)^½), eq. 25; at least 0.

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

    allow_few: give the number all the same (the published protocol: 494 real clips for 2048
    features); it then compares only with sets of the same sizes, and the note says so.
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


def _root(covariance: np.ndarray) -> np.ndarray:
    """The symmetric square root of a positive semi-definite matrix."""
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.sqrt(_positive(values))) @ vectors.T


def _positive(values: np.ndarray) -> np.ndarray:
    """Eigenvalues with those that are rounding errors set to 0: their roots would not be small."""
    smallest = values.max(initial=0.0) * len(values) * np.finfo(np.float64).eps
    return np.where(values > smallest, values, 0.0)


def _chunks(features: np.ndarray) -> Iterator[np.ndarray]:
    for at in range(0, len(features), _CHUNK):
        yield np.asarray(features[at : at + _CHUNK], dtype=np.float64)
