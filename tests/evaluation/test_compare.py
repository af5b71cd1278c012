"""All scores in one call, scores of single clips, and KL as published."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import rel_entr
from scipy.special import softmax as scipy_softmax

from diffsound.errors import InputError
from diffsound.evaluation.compare import clip_scores, compare, kl, kl_per_pair, pair
from diffsound.evaluation.features import FeatureSet, extract, wave_clip
from diffsound.judges.classifier import Classifier
from metric_support import RATE, clip, sound


@pytest.fixture(scope="module")
def real(classifier: Classifier) -> FeatureSet:
    return extract(classifier, [clip(i) for i in range(30)])


OF = {f"clip-{i}.0": f"clip-{i}" for i in range(30)}


@pytest.fixture(scope="module")
def made(classifier: Classifier) -> FeatureSet:
    """One sample of each real clip's name: other sounds."""
    return extract(classifier, [wave_clip(f"clip-{i}.0", sound(100 + i), RATE) for i in range(30)])


def test_all_scores_with_intervals_and_protocol(real: FeatureSet, made: FeatureSet) -> None:
    found = compare(real, made, of=OF, resamples=20)
    assert set(found.scores) == {
        "FID",
        "kernel distance",
        "KL",
        "inception score",
        "precision",
        "recall",
        "density",
        "coverage",
    }
    for score in found.scores.values():
        assert score.value is not None
        assert score.low is not None
        assert score.high is not None
        assert score.low <= score.value <= score.high
    assert found.protocol["real_clips"] == found.protocol["generated_clips"] == 30
    assert found.protocol["classifier"] == real.classifier
    assert found.scores["KL"].better == "lower"


def test_a_set_against_itself_is_perfect(real: FeatureSet) -> None:
    scores = compare(real, real, resamples=0).scores
    assert scores["FID"].value == pytest.approx(0, abs=1e-5)
    assert scores["KL"].value == pytest.approx(0, abs=1e-4)
    assert scores["precision"].value == scores["coverage"].value == 1.0


def test_few_clips_leave_the_unbiased_distance(real: FeatureSet, classifier: Classifier) -> None:
    few = extract(classifier, [clip(i) for i in range(6)])
    scores = compare(real, few, resamples=0).scores
    assert scores["FID"].value is None
    assert "at least 13 clips" in scores["FID"].note
    assert scores["kernel distance"].value is not None
    assert compare(real, few, resamples=0, allow_few=True).scores["FID"].value is not None


def test_every_clip_has_a_score(classifier: Classifier, real: FeatureSet, made: FeatureSet) -> None:
    labels = classifier.config.labels
    found = clip_scores(labels, real, made, OF)
    assert [(one["id"], one["of"]) for one in found] == list(OF.items())
    mean = np.mean([one["kl"] for one in found])
    assert mean == pytest.approx(compare(real, made, of=OF, resamples=0).scores["KL"].value)
    for at, one in enumerate(found):
        assert one["label"] == labels[int(made.logits[at].argmax())]
        assert 1 / 3 <= one["probability"] <= 1
        assert one["realism"] > 0
    (copy,) = clip_scores(labels, real, extract(classifier, [wave_clip("clip-3", sound(3), RATE)]))
    assert copy["kl"] == pytest.approx(0, abs=1e-4)
    with pytest.raises(InputError, match="different classifiers"):
        clip_scores(labels, real, replace(made, classifier="other"), OF)


def logits(seed: int, count: int = 6, classes: int = 5, scale: float = 3.0) -> np.ndarray:
    made = np.random.default_rng(seed).standard_normal((count, classes)) * scale
    return made.astype(np.float32)


@given(st.integers(0, 1000), st.floats(0.1, 10))
def test_kl_is_the_published_sum(seed: int, scale: float) -> None:
    real, fake = logits(seed, scale=scale), logits(seed + 1, scale=scale)
    found = kl_per_pair(real, fake)
    for row in range(len(real)):
        p, q = (
            [math.exp(v) / sum(math.exp(w) for w in x[row].tolist()) for v in x[row].tolist()]
            for x in (real, fake)
        )
        slow = sum(a * (math.log(a) - math.log(b + 1e-6)) for a, b in zip(p, q, strict=True))
        assert found[row] == pytest.approx(slow, rel=1e-6, abs=1e-9)


def test_kl_is_the_true_divergence_but_for_the_published_epsilon() -> None:
    real, fake = logits(0, scale=1.0), logits(1, scale=1.0)
    p, q = (scipy_softmax(x.astype(np.float64), axis=1) for x in (real, fake))
    np.testing.assert_allclose(kl_per_pair(real, fake), rel_entr(p, q).sum(1), atol=1e-3)


def test_kl_is_not_symmetric() -> None:
    """A real clip that is surely one thing against one heard as anything, and the reverse."""
    sure, unsure = np.array([[50.0, 0.0, 0.0, 0.0]]), np.zeros((1, 4))
    assert kl_per_pair(sure, unsure)[0] == pytest.approx(math.log(4), abs=1e-4)
    assert kl_per_pair(unsure, sure)[0] == pytest.approx(-math.log(4) - 0.75 * math.log(1e-6), 1e-3)


def test_kl_of_certain_and_wrong_is_large_but_finite() -> None:
    found = kl_per_pair(np.array([[1e4, 0.0]]), np.array([[0.0, 1e4]]))
    assert found[0] == pytest.approx(-math.log(1e-6))


def test_kl_averages_over_clip_and_sample_pairs() -> None:
    real, fake = logits(0, 2), logits(1, 5)
    partner = np.array([0, 0, 0, 1, 1])
    score = kl(real, fake, partner, resamples=50)
    assert score.value == pytest.approx(kl_per_pair(real[partner], fake).mean())
    assert "KL(real || generated)" in score.note
    assert score.low is not None


def test_samples_find_their_real_clip() -> None:
    real = ["rain-1", "dog.2", "bell"]
    np.testing.assert_array_equal(pair(real, ["bell", "dog.2"]), [2, 1])
    np.testing.assert_array_equal(pair(real, ["x", "y"], {"x": "bell", "y": "rain-1"}), [2, 0])


@pytest.mark.parametrize(("name", "of"), [("cat", None), ("x", {}), ("x", {"x": "cat"})])
def test_a_clip_without_a_real_one_is_named(name: str, of: dict[str, str] | None) -> None:
    with pytest.raises(InputError, match=f"'{name}' has no real clip"):
        pair(["rain"], [name], of)


def test_logits_that_are_not_pairs_or_not_finite_are_refused() -> None:
    with pytest.raises(InputError, match="not pairs"):
        kl_per_pair(logits(0, 3), logits(0, 4))
    broken = logits(0)
    broken[0, 0] = np.inf
    with pytest.raises(InputError, match="not finite"):
        kl_per_pair(logits(1), broken)
