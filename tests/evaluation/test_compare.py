"""All scores at one call, scores of single clips, and the checks beside them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from diffsound.errors import InputError
from diffsound.evaluation.checks import (
    duplicate_clips,
    memorisation,
    report,
    silent_clips,
)
from diffsound.evaluation.classifier import Classifier
from diffsound.evaluation.clips import WaveClip
from diffsound.evaluation.compare import clip_scores, compare
from diffsound.evaluation.features import FeatureSet, extract
from metric_support import RATE, clip, sound


@pytest.fixture(scope="module")
def real(classifier: Classifier) -> FeatureSet:
    return extract(classifier, [clip(i) for i in range(30)])


@pytest.fixture(scope="module")
def made(classifier: Classifier) -> FeatureSet:
    """One sample of each real clip's name: other sounds."""
    return extract(classifier, [WaveClip(f"clip-{i}.0", sound(100 + i), RATE) for i in range(30)])


def test_all_scores_with_intervals_and_protocol(real: FeatureSet, made: FeatureSet) -> None:
    found = compare(real, made, resamples=20)
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
    assert json.loads(json.dumps(found.to_json()))["scores"]["KL"]["better"] == "lower"


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


def test_sets_that_are_no_pairs_have_no_kl(real: FeatureSet, classifier: Classifier) -> None:
    other = extract(classifier, [WaveClip("elsewhere", sound(5), RATE), clip(2)])
    with pytest.raises(InputError, match="'elsewhere' has no real one"):
        compare(real, other)
    score = compare(real, other, paired=False, resamples=0).scores["KL"]
    assert score.value is None
    assert "not pairs" in score.note


def test_every_clip_has_a_score(classifier: Classifier, real: FeatureSet, made: FeatureSet) -> None:
    found = clip_scores(classifier, real, made)
    assert [one.id for one in found] == list(made.ids)
    mean = np.mean([one.kl for one in found if one.kl is not None])
    assert mean == pytest.approx(compare(real, made, resamples=0).scores["KL"].value)
    for at, one in enumerate(found):
        assert one.label == classifier.config.labels[int(made.logits[at].argmax())]
        assert 1 / 3 <= one.probability <= 1
        assert one.realism is not None
        assert one.realism > 0
    (copy,) = clip_scores(
        classifier, real, extract(classifier, [WaveClip("clip-3", sound(3), RATE)])
    )
    assert copy.kl == pytest.approx(0, abs=1e-4)
    other = replace(real, classifier="other"), replace(made, classifier="other")
    with pytest.raises(InputError, match="another classifier"):
        clip_scores(classifier, *other)


def test_silence_is_found(classifier: Classifier) -> None:
    clips = [
        clip(1),
        WaveClip("nothing", np.zeros(4000, np.float32), RATE),
        WaveClip("hiss", sound(2) * 1e-4, RATE),
    ]
    assert silent_clips(extract(classifier, clips)) == ["nothing", "hiss"]


def test_one_sound_again_and_again_is_found(classifier: Classifier) -> None:
    rng = np.random.default_rng(0)
    noisy = sound(3) * 0.5 + 1e-4 * rng.standard_normal(4000).astype(np.float32)
    silence = np.zeros(4000, np.float32)
    clips = [
        *(clip(i) for i in range(12)),
        WaveClip("copy", sound(5), RATE),
        WaveClip("quieter", noisy, RATE),
        WaveClip("silence-1", silence, RATE),
        WaveClip("silence-2", silence, RATE),
    ]
    found = duplicate_clips(extract(classifier, clips))
    assert [(set(group.ids), group.identical) for group in found] == [
        ({"clip-5", "copy"}, True),
        ({"clip-3", "quieter"}, False),
    ]


def test_copies_of_the_training_set_are_found(classifier: Classifier, real: FeatureSet) -> None:
    generated = extract(
        classifier,
        [
            WaveClip("fresh-1", sound(501), RATE),
            WaveClip("stolen", sound(7) * 0.7, RATE),
            WaveClip("fresh-2", sound(502), RATE),
            WaveClip("silence", np.zeros(4000, np.float32), RATE),
        ],
    )
    unseen = extract(classifier, [clip(i) for i in range(200, 240)])
    found = memorisation(generated, real, unseen)
    assert [(one.id, one.same_recording) for one in found.copies] == [("stolen", "clip-7")]
    assert found.neighbours[0].id == "stolen"
    assert found.expected <= 0.05
    assert "1 of 4 generated clips are copies" in str(found)
    exact = memorisation(extract(classifier, [clip(7), clip(9)]), real)
    assert exact.suspicious == 1.0
    assert [one.nearest for one in exact.neighbours] == [one.id for one in exact.neighbours]


def test_unseen_sounds_are_no_copies(classifier: Classifier, real: FeatureSet) -> None:
    unseen = extract(classifier, [clip(i) for i in range(200, 240)])
    found = memorisation(unseen, real, unseen)
    assert found.copies == []
    assert found.suspicious == found.expected


def test_memorisation_needs_something_to_compare(
    classifier: Classifier, real: FeatureSet, made: FeatureSet
) -> None:
    with pytest.raises(InputError, match="at least 2 training clips"):
        memorisation(made, extract(classifier, [clip(1)]))
    with pytest.raises(InputError, match="different classifiers"):
        memorisation(made, replace(real, classifier="other"))


def test_checks_make_one_report(classifier: Classifier, real: FeatureSet) -> None:
    generated = extract(
        classifier,
        [clip(4), WaveClip("nan", np.full(9, np.nan, np.float32), RATE), clip(601)],
    )
    found = json.loads(json.dumps(report(generated, real, None)))
    assert found["clips"] == 2
    assert list(found["unreadable"]) == ["nan"]
    assert found["copies"] == [{"id": "clip-4", "training": "clip-4"}]
    assert found["silent"] == found["duplicates"] == []
    assert [one["id"] for one in found["nearest"]] == ["clip-4", "clip-601"]
    assert found["nearest"][0]["nearest"] == "clip-4"
    assert found["nearest"][0]["distance"] < found["suspicious_distance"]
    assert "copies" not in report(generated, None, None)
