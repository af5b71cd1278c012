"""Set distances against the slow, obvious forms; intervals; too few clips."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsound.errors import InputError
from diffsound.evaluation import distances
from diffsound.evaluation.bootstrap import bootstrap_centred, bootstrap_mean
from diffsound.evaluation.distances import (
    density_coverage,
    inception_score,
    kernel_distance,
    nearest,
    precision_recall,
    realism,
)
from diffsound.evaluation.score import Score

SEEDS = st.integers(0, 10_000)


def points(seed: int, count: int, width: int = 4, shift: float = 0.0) -> np.ndarray:
    made = np.random.default_rng(seed).standard_normal((count, width)) + shift
    return made.astype(np.float32)


def kernel(x: np.ndarray, y: np.ndarray) -> float:
    return (float(x.astype(np.float64) @ y.astype(np.float64)) / len(x) + 1) ** 3


def apart(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.linalg.norm(x.astype(np.float64) - y.astype(np.float64)))


def radius(x: np.ndarray, i: int, k: int) -> float:
    return sorted(apart(x[i], x[j]) for j in range(len(x)) if j != i)[k - 1]


@settings(deadline=None, max_examples=20)
@given(SEEDS, st.integers(2, 9), st.integers(2, 9))
def test_kernel_distance_is_the_mean_over_pairs_of_different_clips(
    seed: int, count: int, other: int
) -> None:
    real, fake = points(seed, count), points(seed + 1, other)
    slow = (
        np.mean([kernel(a, b) for a, b in itertools.permutations(real, 2)])
        + np.mean([kernel(a, b) for a, b in itertools.permutations(fake, 2)])
        - 2 * np.mean([kernel(a, b) for a in real for b in fake])
    )
    found = kernel_distance(real, fake, resamples=0).value
    assert found == pytest.approx(slow, rel=1e-6, abs=1e-6)


def test_kernel_distance_is_unbiased_with_few_clips() -> None:
    """Sets of six from one distribution: the mean over many is 0, single ones are not."""
    found = [
        kernel_distance(points(i, 6), points(10_000 + i, 6), resamples=0).value for i in range(2000)
    ]
    values = np.array(found, dtype=np.float64)
    assert abs(values.mean()) < 3 * values.std() / math.sqrt(len(values))
    assert values.min() < 0 < values.max()


def test_kernel_distances_interval_scatters_as_fresh_sets_do() -> None:
    fresh = [
        kernel_distance(points(i, 60), points(500 + i, 60, shift=0.7), resamples=0).value
        for i in range(60)
    ]
    score = kernel_distance(points(0, 60), points(500, 60, shift=0.7), resamples=200)
    assert score.low is not None
    assert score.high is not None
    expected = float(np.quantile(fresh, 0.975) - np.quantile(fresh, 0.025))
    assert 0.5 < (score.high - score.low) / expected < 2


@settings(deadline=None, max_examples=20)
@given(SEEDS, st.integers(4, 12), st.integers(4, 12), st.floats(0, 3))
def test_manifold_scores_are_what_their_definitions_say(
    seed: int, count: int, other: int, shift: float
) -> None:
    real, fake, k = points(seed, count), points(seed + 1, other, shift=shift), 3
    in_real = [[apart(f, r) <= radius(real, i, k) for i, r in enumerate(real)] for f in fake]
    in_fake = [[apart(r, f) <= radius(fake, i, k) for i, f in enumerate(fake)] for r in real]
    precision, recall = precision_recall(real, fake, neighbours=k, resamples=0)
    density, coverage = density_coverage(real, fake, neighbours=k, resamples=0)
    assert precision.value == pytest.approx(np.mean([any(row) for row in in_real]))
    assert recall.value == pytest.approx(np.mean([any(row) for row in in_fake]))
    assert density.value == pytest.approx(np.mean(in_real) * count / k)
    assert coverage.value == pytest.approx(np.mean(np.any(in_real, axis=0)))


def test_realism_is_one_where_the_manifold_ends() -> None:
    real = points(0, 30)
    values = realism(real, np.concatenate([points(1, 5), points(1, 5, shift=9.0)]), neighbours=3)
    limit = np.median([radius(real, i, 3) for i in range(30)])
    kept = [i for i in range(30) if radius(real, i, 3) <= limit]
    slow = max(radius(real, i, 3) / apart(points(1, 1)[0], real[i]) for i in kept)
    assert values[0] == pytest.approx(slow, rel=1e-6)
    assert values[5:].max() < 0.5


def test_realism_of_a_copy_is_large_but_finite() -> None:
    real = points(0, 10)
    assert np.isfinite(realism(real, real)).all()
    with pytest.raises(InputError, match="3 neighbours need more than 3 clips"):
        realism(real[:3], real)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    real, fake = points(0, 23), points(1, 19, shift=0.5)

    def everything() -> list[float]:
        scores = [
            kernel_distance(real, fake, resamples=0),
            *precision_recall(real, fake, resamples=0),
            *density_coverage(real, fake, resamples=0),
        ]
        return [float(s.value or 0) for s in scores] + nearest(real, real, itself=True)[1].tolist()

    whole = everything()
    monkeypatch.setattr(distances, "_BLOCK", 4)
    np.testing.assert_allclose(everything(), whole, rtol=1e-9)


def test_large_sets_are_sampled_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distances, "MOST_CLIPS", 50)
    score = kernel_distance(points(0, 200), points(1, 200), resamples=0)
    assert "50 clips" in score.note
    assert score.value == pytest.approx(0, abs=0.5)


def test_nearest_finds_the_nearest_other() -> None:
    real = points(0, 12)
    places, found = nearest(real, real, itself=True)
    for i in range(12):
        expected = min((apart(real[i], real[j]), j) for j in range(12) if j != i)
        assert (found[i], places[i]) == (pytest.approx(expected[0], rel=1e-6), expected[1])


def test_inception_score_by_hand() -> None:
    """Sure of every clip and evenly over 4 classes: 4. The same guess for every clip: 1."""
    assert inception_score(np.eye(4), resamples=0).value == pytest.approx(4)
    assert inception_score(np.tile([0.7, 0.2, 0.1], (5, 1))).value == pytest.approx(1)
    p = np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
    middle = p.mean(0)
    divergences = [sum(a * math.log(a / b) for a, b in zip(row, middle, strict=True)) for row in p]
    score = inception_score(p, resamples=20)
    assert score.value == pytest.approx(math.exp(np.mean(divergences)))
    assert score.low is not None
    assert score.low >= 1


def test_too_few_clips_are_named_never_nan() -> None:
    one, many = points(0, 1), points(1, 9)
    for score in (
        kernel_distance(one, many),
        *precision_recall(many[:3], many),
        *density_coverage(many[:5], many),
        inception_score(np.eye(3)[:1]),
    ):
        assert score.value is None
        assert score.note
    with pytest.raises(InputError, match="not finite"):
        kernel_distance(many, np.full((4, 4), np.nan))
    with pytest.raises(ValueError, match="not finite"):
        Score("any", math.nan, "lower")


def test_intervals_of_means_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    inside = 0
    for trial in range(200):
        interval = bootstrap_mean(rng.standard_normal(50), resamples=200, seed=trial)
        assert interval is not None
        inside += interval.low < 0 < interval.high
    assert 178 <= inside <= 199  # 95 % of 200 is 190, a little less for a percentile interval


def test_clips_of_one_group_are_drawn_together() -> None:
    """Ten copies of each value say no more than one: the interval must not shrink."""
    values = np.random.default_rng(1).standard_normal(20)
    alone = bootstrap_mean(values)
    copied = bootstrap_mean(np.repeat(values, 10), groups=np.repeat(np.arange(20), 10).tolist())
    naive = bootstrap_mean(np.repeat(values, 10))
    assert alone is not None
    assert copied == pytest.approx(alone)
    assert naive is not None
    assert naive.high - naive.low < 0.5 * (alone.high - alone.low)


def test_one_group_has_no_interval() -> None:
    assert bootstrap_mean(np.ones(5), groups=["a"] * 5) is None
    assert bootstrap_mean(np.ones(5), resamples=0) is None
    assert bootstrap_centred(lambda i: 0.0, 0.0, [1]) is None
    with pytest.raises(InputError, match="between 0 and 1"):
        bootstrap_mean(np.ones(5), level=95)
