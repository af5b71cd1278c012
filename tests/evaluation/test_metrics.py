"""Set distances against slow, obvious forms and scipy; intervals; too few clips."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsound.errors import InputError
from diffsound.evaluation import metrics
from diffsound.evaluation.metrics import (
    Moments,
    Score,
    fid,
    frechet_distance,
    inception_score,
    kernel_distance,
    manifold_scores,
    moments,
    nearest,
    realism,
)

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


def test_kernel_distance_interval_is_as_wide_as_fresh_sets_vary() -> None:
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
@given(SEEDS, st.integers(6, 12), st.integers(6, 12), st.floats(0, 3))
def test_manifold_scores_match_their_definitions(
    seed: int, count: int, other: int, shift: float
) -> None:
    real, fake = points(seed, count), points(seed + 1, other, shift=shift)
    in_real = [[apart(f, r) <= radius(real, i, 3) for i, r in enumerate(real)] for f in fake]
    in_fake = [[apart(r, f) <= radius(fake, i, 3) for i, f in enumerate(fake)] for r in real]
    dense = [[apart(f, r) <= radius(real, i, 5) for i, r in enumerate(real)] for f in fake]
    precision, recall, density, coverage = manifold_scores(real, fake, resamples=0)
    assert precision.value == pytest.approx(np.mean([any(row) for row in in_real]))
    assert recall.value == pytest.approx(np.mean([any(row) for row in in_fake]))
    assert density.value == pytest.approx(np.mean(dense) * count / 5)
    assert coverage.value == pytest.approx(np.mean(np.any(dense, axis=0)))


def test_realism_is_one_where_the_manifold_ends() -> None:
    real = points(0, 30)
    values = realism(real, np.concatenate([points(1, 5), points(1, 5, shift=9.0)]))
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


def test_block_size_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    real, fake = points(0, 23), points(1, 19, shift=0.5)

    def everything() -> list[float]:
        scores = [
            kernel_distance(real, fake, resamples=0),
            *manifold_scores(real, fake, resamples=0),
        ]
        return [float(s.value or 0) for s in scores] + nearest(real, fake)[1].tolist()

    whole = everything()
    monkeypatch.setattr(metrics, "_BLOCK", 4)
    np.testing.assert_allclose(everything(), whole, rtol=1e-9)


def test_nearest_finds_the_nearest_other() -> None:
    real, others = points(0, 12), points(1, 9)
    places, found = nearest(real, others)
    for i in range(12):
        expected = min((apart(real[i], others[j]), j) for j in range(9))
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


def test_too_few_clips_give_a_reason_never_nan() -> None:
    one, many = points(0, 1), points(1, 9)
    for score in (
        kernel_distance(one, many),
        *manifold_scores(many[:3], many),
        *manifold_scores(many[:5], many)[2:],
        inception_score(np.eye(3)[:1]),
    ):
        assert score.value is None
        assert score.note
    with pytest.raises(InputError, match="not finite"):
        kernel_distance(many, np.full((4, 4), np.nan))
    with pytest.raises(ValueError, match="not finite"):
        Score("any", math.nan, "lower")


def features(seed: int, count: int, width: int) -> np.ndarray:
    """Correlated, skewed, off centre: like a classifier's."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((width, width))
    made = np.maximum(rng.standard_normal((count, width)) @ mixing + rng.uniform(0, 2, width), 0)
    return made.astype(np.float32)


def by_scipy(real: np.ndarray, fake: np.ndarray) -> float:
    first, second = (np.cov(x.astype(np.float64), rowvar=False) for x in (real, fake))
    root = np.real(scipy.linalg.sqrtm(first @ second))
    apart = real.mean(0, dtype=np.float64) - fake.mean(0, dtype=np.float64)
    return float(apart @ apart + np.trace(first) + np.trace(second) - 2 * np.trace(root))


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    width=st.integers(2, 24),
    extra=st.integers(2, 60),
    fewer=st.integers(2, 60),
)
def test_fid_agrees_with_scipys_matrix_square_root(
    seed: int, width: int, extra: int, fewer: int
) -> None:
    real, fake = features(seed, width + extra, width), features(seed + 1, width + fewer, width)
    found = frechet_distance(moments(real), moments(fake))
    assert found == pytest.approx(by_scipy(real, fake), rel=1e-6, abs=1e-6)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), count=st.integers(2, 10), other=st.integers(2, 30))
def test_singular_covariances_are_no_special_case(seed: int, count: int, other: int) -> None:
    """Fewer clips than features, where the matrix square root is ill-defined: the trace of the
    root is the nuclear norm of the product of the centred clips.
    """
    real, fake = (
        features(seed + i, n, 16).astype(np.float64) for i, n in enumerate((count, other))
    )
    first, second = ((x - x.mean(0)) / np.sqrt(len(x) - 1) for x in (real, fake))
    shared = np.linalg.svd(first @ second.T, compute_uv=False).sum()
    apart = real.mean(0) - fake.mean(0)
    expected = apart @ apart + (first**2).sum() + (second**2).sum() - 2 * shared
    found = frechet_distance(moments(real), moments(fake))
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_fid_of_diagonal_gaussians_has_a_closed_form() -> None:
    one = Moments(np.array([1.0, 2.0, 3.0]), np.diag([1.0, 4.0, 9.0]))
    two = Moments(np.array([1.5, 2.0, 1.0]), np.diag([4.0, 0.0, 16.0]))
    assert frechet_distance(one, two) == pytest.approx((0.25 + 4) + (1 + 4 + 1))
    assert frechet_distance(two, one) == pytest.approx(frechet_distance(one, two))


@pytest.mark.parametrize("count", [3, 100])
def test_the_distance_of_a_set_to_itself_is_zero(count: int) -> None:
    found = moments(features(0, count, 20))
    assert frechet_distance(found, found) == pytest.approx(0, abs=1e-6)


def test_identical_clips_give_numbers_not_nan() -> None:
    same = np.ones((10, 4), dtype=np.float32)
    assert frechet_distance(moments(same), moments(same * 3)) == pytest.approx(16)


def test_fid_of_too_few_clips_says_how_many_are_needed() -> None:
    score = fid(features(0, 30, 16), features(1, 16, 16))
    assert score.value is None
    assert "at least 17 clips" in score.note
    assert "30 real and 16 generated" in score.note
    assert "kernel distance" in score.note


def test_fid_of_too_few_clips_can_be_forced_and_says_so() -> None:
    real, fake = features(0, 30, 16), features(1, 10, 16)
    score = fid(real, fake, allow_few=True, resamples=5)
    assert score.value == pytest.approx(frechet_distance(moments(real), moments(fake)))
    assert "compare only with sets of these sizes" in score.note


def test_fid_needs_more_than_one_clip() -> None:
    assert fid(features(0, 1, 4), features(1, 50, 4), allow_few=True).value is None


def test_fid_interval_contains_the_value_and_narrows_with_clips() -> None:
    widths = []
    for count in (40, 640):
        score = fid(features(0, count, 6), features(0, 2 * count, 6)[count:] * 1.5, resamples=60)
        assert score.value is not None
        assert score.low is not None
        assert score.high is not None
        assert score.low < score.value < score.high
        widths.append(score.high - score.low)
    assert widths[1] < widths[0] / 2


def test_features_that_are_not_finite_are_refused() -> None:
    broken = features(0, 30, 4)
    broken[3, 2] = np.nan
    with pytest.raises(InputError, match="not finite"):
        fid(features(1, 30, 4), broken)


def test_features_of_two_widths_are_refused() -> None:
    with pytest.raises(InputError, match="4 and of 5"):
        frechet_distance(moments(features(0, 9, 4)), moments(features(0, 9, 5)))


def test_fid_exists_from_exactly_as_many_clips_as_it_needs() -> None:
    features = np.random.default_rng(0).standard_normal((6, 4))
    needed = metrics.clips_needed(4)
    assert needed == 5
    found = metrics.fid(features[:needed], features[1:], resamples=0)
    assert found.value is not None
    assert found.note == ""
    assert metrics.fid(features[: needed - 1], features, resamples=0).value is None
