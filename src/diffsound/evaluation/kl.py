"""KL divergence between what the classifier hears in a real clip and in one made from its text.

As in the published code: the direction is KL(real ‖ generated), with softmaxed logits and 1e-6
added to the generated probability inside its logarithm, and the mean is over all (real clip,
sample) pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from diffsound.errors import InputError
from diffsound.evaluation.bootstrap import RESAMPLES, bootstrap_mean
from diffsound.evaluation.score import Score

EPSILON = 1e-6
PROTOCOL = (
    "KL(real || generated) in nats, {kind} probabilities, 1e-6 added to the generated one, "
    "mean over (clip, sample) pairs"
)

Kind = Literal["softmax", "sigmoid"]


def kl_per_pair(real: np.ndarray, fake: np.ndarray, kind: Kind = "softmax") -> np.ndarray:
    """Σ p_real (log p_real - log(p_fake + 1e-6)) of logits [N, classes] each: [N] nats.

    kind: "softmax" as published, whatever the classifier was trained with; "sigmoid" sums the
    divergences of independent labels, which is the consistent form for a multi-label classifier.
    """
    if real.shape != fake.shape:
        raise InputError(f"logits {list(real.shape)} and {list(fake.shape)} are not pairs")
    if kind == "softmax":
        return _divergence(_log_softmax(real), _log_softmax(fake)).sum(axis=1)
    held = _divergence(_log_sigmoid(real), _log_sigmoid(fake))
    absent = _divergence(_log_sigmoid(-real), _log_sigmoid(-fake))
    return (held + absent).sum(axis=1)


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
                f"the generated clip '{name}' has no real one to be compared with; "
                "the two sets do not match"
            )
        partners.append(place[partner])
    return np.asarray(partners, dtype=np.int64)


def kl(
    real: np.ndarray,
    fake: np.ndarray,
    partner: np.ndarray,
    *,
    kind: Kind = "softmax",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Score:
    """Mean KL of generated logits [M, classes] to those [N, classes] of their real clips."""
    values = kl_per_pair(np.asarray(real)[partner], np.asarray(fake), kind)
    # Samples of one text share their real clip: they are resampled together.
    interval = bootstrap_mean(values, groups=partner.tolist(), resamples=resamples, seed=seed)
    low, high = interval or (None, None)
    return Score("KL", float(values.mean()), "lower", low, high, PROTOCOL.format(kind=kind))


def _divergence(log_real: np.ndarray, log_fake: np.ndarray) -> np.ndarray:
    return np.exp(log_real) * (log_real - np.log(np.exp(log_fake) + EPSILON))


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = _finite(logits)
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _log_sigmoid(logits: np.ndarray) -> np.ndarray:
    return -np.logaddexp(0.0, -_finite(logits))


def _finite(logits: np.ndarray) -> np.ndarray:
    logits = np.asarray(logits, dtype=np.float64)
    if not np.isfinite(logits).all():
        raise InputError("some logits are not finite; the classifier or a clip is broken")
    return logits
