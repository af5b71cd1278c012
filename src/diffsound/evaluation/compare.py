"""Every feature metric of a generated set against a real one, in one call; KL among them.

KL is between what the classifier hears in a real clip and in one generated from its text. As in the
published code, the direction is KL(real ‖ generated), with softmaxed logits and 1e-6 added to the
generated probability inside its logarithm, and the mean is over all (real clip, sample) pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffsound.errors import InputError
from diffsound.evaluation.distances import (
    FID_RESAMPLES,
    density_coverage,
    fid,
    inception_score,
    kernel_distance,
    precision_recall,
    realism,
)
from diffsound.evaluation.features import FeatureSet, check_comparable
from diffsound.evaluation.scores import LEVEL, RESAMPLES, Score, bootstrap_mean, softmax
from diffsound.judges.classifier import Classifier

EPSILON = 1e-6
KL_PROTOCOL = (
    "KL(real || generated) in nats, softmax probabilities, 1e-6 added to the generated one, "
    "mean over (clip, sample) pairs"
)


@dataclass(frozen=True)
class Comparison:
    """Scores by name, and what one must know to read them."""

    scores: dict[str, Score]
    protocol: dict[str, Any]


def compare(
    real: FeatureSet,
    fake: FeatureSet,
    *,
    of: Mapping[str, str] | None = None,
    allow_few: bool = False,
    resamples: int | None = None,
    seed: int = 0,
) -> Comparison:
    """Score generated clips against real ones.

    of: the real clip's id of each generated one, for KL (see `pair`). resamples: for the
    intervals; 0 for none.
    """
    check_comparable(real, fake)
    many = RESAMPLES if resamples is None else resamples
    few = FID_RESAMPLES if resamples is None else resamples
    partner = pair(real.ids, fake.ids, of)
    scores = [
        fid(real.features, fake.features, allow_few=allow_few, resamples=few, seed=seed),
        kernel_distance(real.features, fake.features, resamples=few, seed=seed),
        kl(real.logits, fake.logits, partner, resamples=many, seed=seed),
        inception_score(softmax(fake.logits), resamples=many, seed=seed),
        *precision_recall(real.features, fake.features, resamples=many, seed=seed),
        *density_coverage(real.features, fake.features, resamples=many, seed=seed),
    ]
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

    realism: 1 or more is as close to real clips as they are to each other; None with too few.
    kl: to its real clip, in nats. label, probability: the classifier's first guess.
    """

    id: str
    realism: float | None
    kl: float
    label: str
    probability: float
    level_db: float


def clip_scores(
    classifier: Classifier,
    real: FeatureSet,
    fake: FeatureSet,
    *,
    of: Mapping[str, str] | None = None,
) -> list[ClipScore]:
    """A score for every generated clip, in order."""
    check_comparable(real, fake)
    if classifier.fingerprint != fake.classifier:
        raise InputError("these features come from another classifier than the one given")
    divergence = kl_per_pair(real.logits[pair(real.ids, fake.ids, of)], np.asarray(fake.logits))
    real_like = realism(real.features, fake.features) if len(real) > 3 else None
    guesses = softmax(fake.logits)
    best = guesses.argmax(axis=1)
    return [
        ClipScore(
            id=name,
            realism=None if real_like is None else float(real_like[at]),
            kl=float(divergence[at]),
            label=classifier.config.labels[best[at]],
            probability=float(guesses[at, best[at]]),
            level_db=float(fake.level[at]),
        )
        for at, name in enumerate(fake.ids)
    ]


def kl_per_pair(real: np.ndarray, fake: np.ndarray) -> np.ndarray:
    """Σ p_real (log p_real - log(p_fake + 1e-6)) of logits [N, classes] each: [N] nats."""
    if real.shape != fake.shape:
        raise InputError(f"logits {list(real.shape)} and {list(fake.shape)} are not pairs")
    log_real, log_fake = _log_softmax(real), _log_softmax(fake)
    divergence = np.exp(log_real) * (log_real - np.log(np.exp(log_fake) + EPSILON))
    return np.asarray(divergence.sum(axis=1))


def pair(
    real_ids: Sequence[str], fake_ids: Sequence[str], of: Mapping[str, str] | None = None
) -> np.ndarray:
    """For each generated clip the position of its real one, int [M].

    of: the real clip's id of each generated one. Without it a generated clip has the real one's id
    alone, or followed by a dot and the number of the sample ("rain-3.0", "rain-3.1").
    """
    place = {name: at for at, name in enumerate(real_ids)}
    partners = []
    for name in fake_ids:
        partner = of.get(name) if of is not None else name
        if of is None and name not in place:
            partner = name.rpartition(".")[0]
        if partner is None or partner not in place:
            raise InputError(
                f"the generated clip '{name}' has no real clip to be compared with; "
                "the two sets do not match"
            )
        partners.append(place[partner])
    return np.asarray(partners, dtype=np.int64)


def kl(
    real: np.ndarray,
    fake: np.ndarray,
    partner: np.ndarray,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Score:
    """Mean KL of generated logits [M, classes] to those [N, classes] of their real clips."""
    values = kl_per_pair(np.asarray(real)[partner], np.asarray(fake))
    # Samples of one text share their real clip, so they are resampled together.
    interval = bootstrap_mean(values, groups=partner.tolist(), resamples=resamples, seed=seed)
    low, high = interval or (None, None)
    return Score("KL", float(values.mean()), "lower", low, high, KL_PROTOCOL)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = np.asarray(logits, dtype=np.float64)
    if not np.isfinite(logits).all():
        raise InputError("some logits are not finite; the classifier or a clip is broken")
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
