"""Scores: intervals that hold what they promise, shares that count classes equally."""

from __future__ import annotations

import numpy as np
import pytest

from diffsound.evaluation.checks import Named, Opinion, balanced, hits, spread
from diffsound.evaluation.metrics import bootstrap_centred, mean_score


def test_intervals_of_means_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    inside = 0
    for trial in range(200):
        score = mean_score("mean", rng.standard_normal(50), resamples=200, seed=trial)
        assert score.low is not None
        inside += score.low < 0 < score.high
    assert 178 <= inside <= 199  # 95 % of 200 is 190, a little less for a percentile interval


def test_clips_of_one_group_are_drawn_together() -> None:
    """Ten copies of each value say no more than one: the interval must not shrink."""
    values = np.random.default_rng(1).standard_normal(20)
    tenfold, groups = np.repeat(values, 10), np.repeat(np.arange(20), 10).tolist()
    alone, copied, naive = (
        mean_score("mean", of, groups=by)
        for of, by in ((values, None), (tenfold, groups), (tenfold, None))
    )
    assert (copied.low, copied.high) == pytest.approx((alone.low, alone.high))
    assert naive.high - naive.low < 0.5 * (alone.high - alone.low)


def test_one_group_has_no_interval() -> None:
    assert mean_score("mean", np.ones(5), groups=["a"] * 5).low is None
    assert mean_score("mean", np.ones(5), resamples=0).low is None
    assert bootstrap_centred(lambda i: 0.0, 0.0, [1], 10, 0) == (None, None)


def test_shares_count_every_class_the_same() -> None:
    logits = np.array([[3.0, 2, 1], [1, 3, 2], [3, 1, 2], [3, 1, 2], [1, 2, 3]])
    targets = np.array([0, 0, 0, 0, 2])
    assert hits(logits, targets, 1).tolist() == [True, False, True, True, True]
    assert hits(logits, targets, 2).tolist() == [True, False, True, True, True]
    score = balanced(hits(logits, targets, 1), targets, "top-1")
    assert score.value == pytest.approx((0.75 + 1.0) / 2)
    assert score.low is not None
    assert score.low < score.value <= score.high
    lonely = balanced(np.array([True, False] * 10), np.arange(20), "top-1")
    assert lonely.low is not None
    assert lonely.low < 0.4 < 0.6 < lonely.high, "one clip a class is not certainty"
    named = {"real": Named(tuple("abcde"), logits, logits)}
    opinion = Opinion(("x", "y", "z"), (0, 2), named, {"real": targets}, {})
    assert opinion.confusion("real").tolist() == [[3, 1, 0], [0, 0, 1]]


def test_spread_is_relative_to_real_clips() -> None:
    rng = np.random.default_rng(0)
    real = rng.standard_normal((40, 6))
    of = np.repeat([0, 1], 20)
    same = spread(real, of, real, of)
    assert same == {"ratio": pytest.approx(1.0), "classes": 2}
    centre = real.mean(axis=0)
    tighter = centre + 0.25 * (real - centre)
    assert spread(real, of, tighter, of)["ratio"] == pytest.approx(0.25)
    alone = spread(real[:1], of[:1], real, of)
    assert alone == {"ratio": None, "classes": 0}
