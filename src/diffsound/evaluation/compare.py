"""Every feature metric of a generated set against a real one, at one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffsound.errors import InputError
from diffsound.evaluation.bootstrap import LEVEL, RESAMPLES
from diffsound.evaluation.classifier import Classifier
from diffsound.evaluation.distances import (
    density_coverage,
    inception_score,
    kernel_distance,
    precision_recall,
    realism,
)
from diffsound.evaluation.features import FeatureSet, check_comparable
from diffsound.evaluation.fid import FID_RESAMPLES, fid
from diffsound.evaluation.kl import Kind, kl, kl_per_pair, pair
from diffsound.evaluation.score import Score


@dataclass(frozen=True)
class Comparison:
    """Scores by name, and what has to be known to read them."""

    scores: dict[str, Score]
    protocol: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "scores": {name: score.to_json() for name, score in self.scores.items()},
            "protocol": self.protocol,
        }


def compare(
    real: FeatureSet,
    fake: FeatureSet,
    *,
    of: Mapping[str, str] | None = None,
    paired: bool = True,
    kind: Kind = "softmax",
    allow_few: bool = False,
    resamples: int | None = None,
    seed: int = 0,
) -> Comparison:
    """Score generated clips against real ones.

    of: the real clip's id of each generated one, for KL (see `kl.pair`); with paired=False the
    sets are unrelated and KL is not available. resamples: of the intervals; 0 for none.
    """
    check_comparable(real, fake)
    many = RESAMPLES if resamples is None else resamples
    few = FID_RESAMPLES if resamples is None else resamples
    scores = [fid(real.features, fake.features, allow_few=allow_few, resamples=few, seed=seed)]
    scores.append(kernel_distance(real.features, fake.features, resamples=few, seed=seed))
    if paired:
        partner = pair(real.ids, fake.ids, of)
        scores.append(kl(real.logits, fake.logits, partner, kind=kind, resamples=many, seed=seed))
    else:
        note = "the two sets are not pairs of a real clip and one made from its text"
        scores.append(Score("KL", None, "lower", note=note))
    scores.append(inception_score(softmax(fake.logits), resamples=many, seed=seed))
    scores += precision_recall(real.features, fake.features, resamples=many, seed=seed)
    scores += density_coverage(real.features, fake.features, resamples=many, seed=seed)
    protocol = {
        "classifier": real.classifier,
        "feature_dim": int(real.features.shape[1]),
        "real_clips": len(real),
        "generated_clips": len(fake),
        "unreadable": len(real.failed) + len(fake.failed),
        "seconds": real.window,
        "interval": f"{LEVEL:.0%}, bootstrap over clips",
        "seed": seed,
    }
    return Comparison({score.name: score for score in scores}, protocol)


@dataclass(frozen=True)
class ClipScore:
    """One generated clip: how real it is, how far from its real clip, what it sounds like.

    realism: 1 and more is as near to real clips as they are to each other; None with too few.
    kl: to its real clip, nats; None without one. label, probability: the classifier's first guess.
    """

    id: str
    realism: float | None
    kl: float | None
    label: str
    probability: float
    level_db: float


def clip_scores(
    classifier: Classifier,
    real: FeatureSet,
    fake: FeatureSet,
    *,
    of: Mapping[str, str] | None = None,
    paired: bool = True,
) -> list[ClipScore]:
    """A score for every generated clip, in their order."""
    check_comparable(real, fake)
    if classifier.fingerprint != fake.classifier:
        raise InputError("these features are of another classifier than the one given")
    divergence = None
    if paired:
        partner = pair(real.ids, fake.ids, of)
        divergence = kl_per_pair(real.logits[partner], np.asarray(fake.logits))
    real_like = realism(real.features, fake.features) if len(real) > 3 else None
    guesses = softmax(fake.logits)
    best = guesses.argmax(axis=1)
    return [
        ClipScore(
            id=name,
            realism=None if real_like is None else float(real_like[at]),
            kl=None if divergence is None else float(divergence[at]),
            label=classifier.config.labels[best[at]],
            probability=float(guesses[at, best[at]]),
            level_db=float(fake.level[at]),
        )
        for at, name in enumerate(fake.ids)
    ]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities [N, classes] of logits."""
    logits = np.asarray(logits, dtype=np.float64)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
