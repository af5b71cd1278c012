"""What a classifier hears when: its verdict on windows that slide over a clip."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from diffsound.evaluation.checks import SILENT_DB
from diffsound.evaluation.classifier import Classifier
from diffsound.evaluation.clips import Clip, WaveClip
from diffsound.evaluation.compare import softmax
from diffsound.evaluation.feature_cache import FeatureCache
from diffsound.evaluation.features import extract


@dataclass(frozen=True)
class Heard:
    """The audible windows of a clip: where each begins, seconds [W], and what it may be [W, C]."""

    labels: tuple[str, ...]
    starts: np.ndarray
    probabilities: np.ndarray

    def present(self, top: int) -> set[str]:
        """The labels among the `top` likeliest of any window."""
        best = np.argsort(-self.probabilities, axis=1, kind="stable")[:, :top]
        return {self.labels[place] for place in np.unique(best)}

    def surest(self, label: str) -> float:
        """Where the window begins that is surest of the label; the clip must be audible."""
        return float(self.starts[self.probabilities[:, self.labels.index(label)].argmax()])


def listen(
    classifier: Classifier,
    clip: Clip,
    *,
    window: float,
    hop: float,
    cache: FeatureCache | None = None,
) -> Heard:
    """Run the classifier over windows of a clip; silent ones, of which it knows nothing, are left
    out."""
    found = extract(classifier, _windows(classifier, clip, window, hop), cache=cache)
    audible = np.asarray(found.level) >= SILENT_DB
    starts = np.array([float(name) for name in found.ids])
    return Heard(
        classifier.config.labels,
        starts[audible],
        softmax(np.asarray(found.logits)[audible]),
    )


def _windows(classifier: Classifier, clip: Clip, window: float, hop: float) -> Iterator[WaveClip]:
    """Windows of equal length, named by where they begin; the last one ends with the clip."""
    rate = classifier.config.mel.sample_rate
    wave = clip.wave(rate)
    size, step = round(window * rate), max(1, round(hop * rate))
    last = max(0, len(wave) - size)
    for start in [*range(0, last, step), last]:
        part = wave[start : start + size]
        yield WaveClip(f"{start / rate:.4f}", np.pad(part, (0, size - len(part))), rate)
