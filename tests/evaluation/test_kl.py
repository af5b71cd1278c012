"""KL as published, pairing, and its interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import rel_entr
from scipy.special import softmax as scipy_softmax

from diffsound.errors import InputError
from diffsound.evaluation.kl import kl, kl_per_pair, pair


def logits(seed: int, count: int = 6, classes: int = 5, scale: float = 3.0) -> np.ndarray:
    made = np.random.default_rng(seed).standard_normal((count, classes)) * scale
    return made.astype(np.float32)


@given(st.integers(0, 1000), st.floats(0.1, 10))
def test_is_the_published_sum(seed: int, scale: float) -> None:
    real, fake = logits(seed, scale=scale), logits(seed + 1, scale=scale)
    found = kl_per_pair(real, fake)
    for row in range(len(real)):
        p, q = (
            [math.exp(v) / sum(math.exp(w) for w in x[row].tolist()) for v in x[row].tolist()]
            for x in (real, fake)
        )
        slow = sum(a * (math.log(a) - math.log(b + 1e-6)) for a, b in zip(p, q, strict=True))
        assert found[row] == pytest.approx(slow, rel=1e-6, abs=1e-9)


def test_is_the_true_divergence_but_for_the_published_epsilon() -> None:
    real, fake = logits(0, scale=1.0), logits(1, scale=1.0)
    p, q = (scipy_softmax(x.astype(np.float64), axis=1) for x in (real, fake))
    np.testing.assert_allclose(kl_per_pair(real, fake), rel_entr(p, q).sum(1), atol=1e-3)


def test_has_a_direction() -> None:
    """A real clip that is surely one thing against one heard as anything, and the reverse."""
    sure, unsure = np.array([[50.0, 0.0, 0.0, 0.0]]), np.zeros((1, 4))
    assert kl_per_pair(sure, unsure)[0] == pytest.approx(math.log(4), abs=1e-4)
    assert kl_per_pair(unsure, sure)[0] == pytest.approx(-math.log(4) - 0.75 * math.log(1e-6), 1e-3)


def test_certain_and_wrong_is_large_but_finite() -> None:
    found = kl_per_pair(np.array([[1e4, 0.0]]), np.array([[0.0, 1e4]]))
    assert found[0] == pytest.approx(-math.log(1e-6))


def test_sigmoids_sum_over_independent_labels() -> None:
    real, fake = logits(2), logits(3)
    p, q = (1 / (1 + np.exp(-x.astype(np.float64))) for x in (real, fake))
    expected = (rel_entr(p, q + 1e-6) + rel_entr(1 - p, 1 - q + 1e-6)).sum(1)
    np.testing.assert_allclose(kl_per_pair(real, fake, "sigmoid"), expected, atol=1e-9)


def test_averages_over_clip_and_sample_pairs() -> None:
    real, fake = logits(0, 2), logits(1, 5)
    partner = np.array([0, 0, 0, 1, 1])
    score = kl(real, fake, partner, resamples=50)
    assert score.value == pytest.approx(kl_per_pair(real[partner], fake).mean())
    assert "KL(real || generated)" in score.note
    assert "softmax" in score.note
    assert score.low is not None


def test_samples_find_their_real_clip() -> None:
    real = ["rain-1", "dog.2", "bell"]
    np.testing.assert_array_equal(
        pair(real, ["bell", "rain-1.0", "rain-1.1", "dog.2", "dog.2.7"]), [2, 0, 0, 1, 1]
    )
    np.testing.assert_array_equal(pair(real, ["x", "y"], {"x": "bell", "y": "rain-1"}), [2, 0])


@pytest.mark.parametrize(
    ("name", "of"), [("cat", None), ("cat.0", None), ("x", {}), ("x", {"x": "cat"})]
)
def test_a_clip_without_partner_is_named(name: str, of: dict[str, str] | None) -> None:
    with pytest.raises(InputError, match=f"'{name}' has no real one"):
        pair(["rain"], [name], of)


def test_logits_that_are_no_pairs_or_not_finite_are_refused() -> None:
    with pytest.raises(InputError, match="not pairs"):
        kl_per_pair(logits(0, 3), logits(0, 4))
    broken = logits(0)
    broken[0, 0] = np.inf
    with pytest.raises(InputError, match="not finite"):
        kl_per_pair(logits(1), broken)
