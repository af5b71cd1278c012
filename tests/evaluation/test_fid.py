"""FID against scipy's matrix square root and against forms that need none."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsound.errors import InputError
from diffsound.evaluation.fid import Moments, fid, frechet_distance, moments


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
def test_agrees_with_scipys_matrix_square_root(
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


def test_of_diagonal_gaussians_is_known_in_closed_form() -> None:
    one = Moments(100, np.array([1.0, 2.0, 3.0]), np.diag([1.0, 4.0, 9.0]))
    two = Moments(100, np.array([1.5, 2.0, 1.0]), np.diag([4.0, 0.0, 16.0]))
    assert frechet_distance(one, two) == pytest.approx((0.25 + 4) + (1 + 4 + 1))
    assert frechet_distance(two, one) == pytest.approx(frechet_distance(one, two))


@pytest.mark.parametrize("count", [3, 100])
def test_a_set_is_at_no_distance_from_itself(count: int) -> None:
    found = moments(features(0, count, 20))
    assert frechet_distance(found, found) == pytest.approx(0, abs=1e-6)


def test_identical_clips_give_numbers_not_nan() -> None:
    same = np.ones((10, 4), dtype=np.float32)
    assert frechet_distance(moments(same), moments(same * 3)) == pytest.approx(16)


def test_moments_do_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    made = features(3, 100, 5)
    monkeypatch.setattr("diffsound.evaluation.fid._CHUNK", 7)
    found = moments(made)
    np.testing.assert_allclose(found.mean, made.mean(0, dtype=np.float64))
    np.testing.assert_allclose(found.covariance, np.cov(made.astype(np.float64), rowvar=False))


def test_too_few_clips_are_told_how_many_are_needed() -> None:
    score = fid(features(0, 30, 16), features(1, 16, 16))
    assert score.value is None
    assert "at least 17 clips" in score.note
    assert "30 real and 16 generated" in score.note
    assert "kernel distance" in score.note
    assert "not available" in str(score)


def test_too_few_clips_may_be_forced_and_say_so() -> None:
    real, fake = features(0, 30, 16), features(1, 10, 16)
    score = fid(real, fake, allow_few=True, resamples=5)
    assert score.value == pytest.approx(frechet_distance(moments(real), moments(fake)))
    assert "compare only with sets of these sizes" in score.note


def test_one_clip_is_never_enough() -> None:
    assert fid(features(0, 1, 4), features(1, 50, 4), allow_few=True).value is None


def test_interval_holds_the_value_and_narrows_with_clips() -> None:
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
