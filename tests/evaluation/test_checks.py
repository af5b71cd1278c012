"""Faults of clips and of whole sets are found; sound ones pass."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from diffsound.errors import InputError
from diffsound.evaluation.checks import (
    Facts,
    band_edges,
    measure_clip,
    spectrum_distance,
    summarise,
    third_octaves,
)
from diffsound.evaluation.features import FeatureSet, extract, wave_clip
from diffsound.evaluation.run import check_set
from diffsound.judges.classifier import Classifier
from metric_support import RATE as CLIP_RATE
from metric_support import clip, sound

RATE = 16000
HOP, STRIDE = 160, 10  # columns of a tenth of a second


def levels(wave: Tensor) -> Tensor:
    """A mel of one band: the level of every hop, wave [1, samples] to [1, 1, L]."""
    whole = torch.nn.functional.pad(wave, (0, -wave.shape[1] % HOP))
    return whole.unflatten(1, (-1, HOP)).square().mean(2).sqrt()[:, None] * 5


def measure(wave: np.ndarray) -> Facts:
    return measure_clip(wave, RATE, levels, STRIDE)


def noise(seed: int = 0, level: float = 0.1, seconds: float = 2.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (level * rng.standard_normal(round(seconds * RATE))).astype(np.float32)


def test_a_clean_sound() -> None:
    facts = measure(noise())
    assert not facts.clipped
    assert facts.silence == 0.0
    assert facts.offset_db < -50
    assert facts.loudness is not None
    assert facts.spectrum.sum() == pytest.approx(1.0)


def test_faults_are_found() -> None:
    assert measure(np.clip(noise(level=1.0), -1, 1)).clipped
    lonely = noise()
    lonely[100] = 1.0
    assert not measure(lonely).clipped, "one sample at full scale is a peak"
    assert measure(noise() + 0.1).offset_db == pytest.approx(-20, abs=0.2)
    half = noise()
    half[: len(half) // 2] = 0
    assert measure(half).silence == pytest.approx(0.5, abs=0.01)
    silent = measure(np.zeros(RATE, dtype=np.float32))
    assert silent.loudness is None
    assert silent.silence == 1.0
    assert measure(np.ones(2, dtype=np.float32)).silence == 0.0


def test_a_cut_sound_is_distinguished_from_one_that_fades() -> None:
    time = np.arange(2 * RATE) / RATE
    assert not measure(noise() * np.exp(-6 * time).astype(np.float32)).cut
    cut = noise()
    cut[RATE:] = 0
    assert measure(cut).cut
    assert not measure(noise()).cut, "a continuous sound ends with the clip"
    assert not measure(np.zeros(RATE, dtype=np.float32)).cut
    decaying = noise() * np.exp(-6 * time).astype(np.float32)
    decaying[RATE // 5 :] = 0
    assert measure(decaying).cut


def test_a_tone_lies_in_its_band() -> None:
    wave = np.sin(2 * np.pi * 1000 * np.arange(RATE) / RATE).astype(np.float32)
    edges = band_edges(RATE)
    (place,) = np.flatnonzero((edges[:-1] <= 1000) & (edges[1:] > 1000))
    spectrum = third_octaves(wave, RATE)
    assert spectrum.argmax() == place
    assert spectrum[place] > 0.9


def test_the_spectrum_ignores_level_and_hears_colour() -> None:
    plain, loud = third_octaves(noise(), RATE), third_octaves(noise(1, level=0.4), RATE)
    assert spectrum_distance(plain, loud) < 1.5
    dull = third_octaves(np.convolve(noise(2), np.ones(8) / 8, mode="same"), RATE)
    assert spectrum_distance(plain, dull) > 3
    doubled = plain * np.where(np.arange(len(plain)) == 3, 4.0, 1.0)
    expected = 10 * np.log10(4) / np.sqrt(len(plain))
    assert spectrum_distance(plain, doubled) == pytest.approx(expected)


def test_a_set_against_the_real_one() -> None:
    real = {"dog": [measure(noise(seed)) for seed in range(4)]}
    made = {"dog": [measure(0.5 * noise(9)), measure(np.zeros(RATE, np.float32))]}
    truth, found = summarise(real, None), summarise(made, real)
    assert truth["spectrum_distance_db"] < 1.5
    assert truth["loudness_spread_lu"] < 0.5
    assert found["silent_clips"] == 1
    assert found["silence_share"] == 0.5
    assert found["loudness_lufs"] == pytest.approx(truth["loudness_lufs"] - 6, abs=0.3)
    assert summarise({}, real)["clipped_share"] is None


def test_columns_that_step_are_found() -> None:
    rng = np.random.default_rng(3)
    steps = np.repeat(rng.uniform(0.5, 1.5, 20), HOP * STRIDE).astype(np.float32)
    steady, stepping = (summarise({"rain": [measure(w)]}, None)["seam_ratio"]
                        for w in (noise(), noise() * steps))  # fmt: skip
    assert steady == pytest.approx(1.0, abs=0.4)
    assert stepping > 3
    assert summarise({}, {})["seam_ratio"] is None


@pytest.fixture(scope="module")
def real(classifier: Classifier) -> FeatureSet:
    return extract(classifier, [clip(i) for i in range(30)])


@pytest.fixture(scope="module")
def made(classifier: Classifier) -> FeatureSet:
    """One sample of each real clip's name: other sounds."""
    return extract(
        classifier, [wave_clip(f"clip-{i}.0", sound(100 + i), CLIP_RATE) for i in range(30)]
    )


def test_silence_is_found(classifier: Classifier, real: FeatureSet) -> None:
    clips = [
        clip(1),
        wave_clip("nothing", np.zeros(4000, np.float32), CLIP_RATE),
        wave_clip("hiss", sound(2) * 1e-4, CLIP_RATE),
    ]
    found = check_set(extract(classifier, clips), None, real)
    assert found["silent"] == ["nothing", "hiss"]


def test_repeated_sounds_are_found(classifier: Classifier, real: FeatureSet) -> None:
    rng = np.random.default_rng(0)
    noisy = sound(3) * 0.5 + 1e-4 * rng.standard_normal(4000).astype(np.float32)
    silence = np.zeros(4000, np.float32)
    clips = [
        *(clip(i) for i in range(12)),
        wave_clip("copy", sound(5), CLIP_RATE),
        wave_clip("quieter", noisy, CLIP_RATE),
        wave_clip("silence-1", silence, CLIP_RATE),
        wave_clip("silence-2", silence, CLIP_RATE),
    ]
    found = check_set(extract(classifier, clips), None, real)["duplicates"]
    assert [(set(group["ids"]), group["identical"]) for group in found] == [
        ({"clip-5", "copy"}, True),
        ({"clip-3", "quieter"}, False),
    ]


def test_copies_of_the_training_set_are_found(classifier: Classifier, real: FeatureSet) -> None:
    generated = extract(
        classifier,
        [
            wave_clip("fresh-1", sound(501), CLIP_RATE),
            wave_clip("stolen", sound(7) * 0.7, CLIP_RATE),
            wave_clip("fresh-2", sound(502), CLIP_RATE),
            wave_clip("silence", np.zeros(4000, np.float32), CLIP_RATE),
        ],
    )
    unseen = extract(classifier, [clip(i) for i in range(200, 240)])
    found = check_set(generated, real, unseen)
    assert found["copies"] == [{"id": "stolen", "training": "clip-7"}]
    assert found["nearest"][0]["id"] == "stolen"
    assert found["expected_share"] <= 0.05
    exact = check_set(extract(classifier, [clip(7), clip(9)]), real, unseen)
    assert exact["suspicious_share"] == 1.0
    assert [one["nearest"] for one in exact["nearest"]] == [one["id"] for one in exact["nearest"]]


def test_unseen_sounds_are_not_copies(classifier: Classifier, real: FeatureSet) -> None:
    unseen = extract(classifier, [clip(i) for i in range(200, 240)])
    found = check_set(unseen, real, unseen)
    assert found["copies"] == []
    assert found["suspicious_share"] == found["expected_share"]


def test_a_search_for_copies_needs_training_clips_by_the_same_classifier(
    classifier: Classifier, real: FeatureSet, made: FeatureSet
) -> None:
    with pytest.raises(InputError, match="at least 2 training clips"):
        check_set(made, extract(classifier, [clip(1)]), real)
    with pytest.raises(InputError, match="different classifiers"):
        check_set(made, replace(real, classifier="other"), real)


def test_all_checks_in_one_report(classifier: Classifier, real: FeatureSet) -> None:
    generated = extract(
        classifier,
        [clip(4), wave_clip("nan", np.full(9, np.nan, np.float32), CLIP_RATE), clip(601)],
    )
    unseen = extract(classifier, [clip(i) for i in range(200, 240)])
    found = json.loads(json.dumps(check_set(generated, real, unseen)))
    assert found["clips"] == 2
    assert list(found["unreadable"]) == ["nan"]
    assert found["copies"] == [{"id": "clip-4", "training": "clip-4"}]
    assert found["silent"] == found["duplicates"] == []
    assert [one["id"] for one in found["nearest"]] == ["clip-4", "clip-601"]
    assert found["nearest"][0]["nearest"] == "clip-4"
    assert found["nearest"][0]["distance"] < found["suspicious_distance"]
    assert "copies" not in check_set(generated, None, unseen)
