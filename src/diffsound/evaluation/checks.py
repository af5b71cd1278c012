"""What good figures may hide: silence, one clip over and over, copies of the training set."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from diffsound.data.duplicates import BANDS, CELLS, MOVEMENT, near_duplicates
from diffsound.errors import InputError
from diffsound.evaluation.distances import nearest
from diffsound.evaluation.features import FeatureSet

SILENT_DB = -60.0  # RMS below which nobody hears anything at a normal volume
# A clip nearer to a training clip than all but this share of real unseen clips is suspicious.
SUSPICIOUS = 0.01
# Fingerprints whose detail correlates above this are one recording. Lengths cannot be compared here
# (a generated clip has its own), so it is stricter than for duplicates: of 371 unseen ESC-50 clips
# against 3 686 training clips none passes (at 0.85: four), of training clips at 0.6 of their level,
# moved and with errors of 5 dB in every cell of the mel, 80 % do.
SAME_DETAIL = 0.9
# Neighbours a report names and a page shows.
NEAREST = 8
_BLOCK = 2048


@dataclass(frozen=True)
class Duplicate:
    """Clips of one set that are the same sound; `identical` if sample by sample."""

    ids: tuple[str, ...]
    identical: bool


@dataclass(frozen=True)
class Neighbour:
    """A generated clip and the training clip nearest to it.

    distance: in features, each divided by its deviation over the training clips.
    same_recording: the training clip whose fingerprint it shares, if any (not by the classifier).
    suspicious: nearer than nearly all real clips outside the training set are to theirs.
    """

    id: str
    nearest: str
    distance: float
    suspicious: bool
    same_recording: str | None


@dataclass(frozen=True)
class Memorisation:
    """Neighbours of all generated clips, the most suspicious first.

    threshold: the distance below which a clip is suspicious; expected: the share of real unseen
    clips below it. A share of generated clips well above that means copying.
    """

    neighbours: tuple[Neighbour, ...]
    threshold: float
    expected: float

    @property
    def suspicious(self) -> float:
        """Share of generated clips below the threshold."""
        return sum(one.suspicious for one in self.neighbours) / max(1, len(self.neighbours))

    @property
    def copies(self) -> list[Neighbour]:
        """Generated clips that are a training clip's recording."""
        return [one for one in self.neighbours if one.same_recording is not None]

    def __str__(self) -> str:
        return (
            f"{len(self.copies)} of {len(self.neighbours)} generated clips are copies of training "
            f"clips; {self.suspicious:.1%} are nearer to one than {1 - self.expected:.1%} of real "
            "unseen clips are"
        )


def silent_clips(clips: FeatureSet, below_db: float = SILENT_DB) -> list[str]:
    """Ids of the clips whose RMS is below that many dB of full scale."""
    return [clips.ids[at] for at in np.flatnonzero(clips.level < below_db)]


def duplicate_clips(clips: FeatureSet) -> list[Duplicate]:
    """Groups of clips that are one sound, exactly or nearly; silent clips are not among them."""
    heard = np.flatnonzero(clips.level >= SILENT_DB)
    by_key: dict[str, list[str]] = defaultdict(list)
    for at in heard:
        by_key[clips.keys[at]].append(clips.ids[at])
    found = [Duplicate(tuple(ids), identical=True) for ids in by_key.values() if len(ids) > 1]
    # Of identical clips one stands for all in the search for near ones.
    first = {ids[0] for ids in by_key.values()}
    kept = [at for at in heard if clips.ids[at] in first]
    groups = near_duplicates(
        [clips.ids[at] for at in kept], clips.sounds[kept], clips.seconds[kept].tolist()
    )
    return found + [Duplicate(tuple(group.ids), identical=False) for group in groups]


def memorisation(
    generated: FeatureSet, training: FeatureSet, unseen: FeatureSet | None = None
) -> Memorisation:
    """Look for copies of training clips among generated ones.

    unseen: real clips that were not trained on, which set what distance is normal; without them
    training clips do, each against the others, which are nearer when one recording has many takes.
    """
    for clips in (training,) if unseen is None else (training, unseen):
        if clips.classifier != generated.classifier:
            raise InputError("the sets were measured by different classifiers; use one for all")
    if len(training) < 2 or not len(generated) or (unseen is not None and not len(unseen)):
        raise InputError("looking for copies needs generated clips and at least 2 training clips")
    scale = 1.0 / np.maximum(np.asarray(training.features).std(axis=0), 1e-6)
    known = training.features * scale
    if unseen is None:
        _, normal = nearest(known, known, itself=True)
    else:
        _, normal = nearest(unseen.features * scale, known)
    threshold = float(np.quantile(normal, SUSPICIOUS))
    places, distances = nearest(generated.features * scale, known)
    same = _same_recording(generated, training)
    neighbours = [
        Neighbour(
            id=generated.ids[at],
            nearest=training.ids[places[at]],
            distance=float(distances[at]),
            suspicious=bool(distances[at] < threshold),
            same_recording=None if same[at] < 0 else training.ids[same[at]],
        )
        for at in range(len(generated))
    ]
    neighbours.sort(key=lambda one: (one.same_recording is None, one.distance))
    return Memorisation(tuple(neighbours), threshold, float((normal < threshold).mean()))


def report(
    generated: FeatureSet, training: FeatureSet | None, unseen: FeatureSet | None
) -> dict[str, Any]:
    """All checks as JSON; copies are looked for when training clips are given."""
    duplicates = duplicate_clips(generated)
    found: dict[str, Any] = {
        "clips": len(generated),
        "unreadable": dict(generated.failed),
        "silent": silent_clips(generated),
        "duplicates": [
            {"ids": list(group.ids), "identical": group.identical} for group in duplicates
        ],
    }
    if training is not None:
        memory = memorisation(generated, training, unseen)
        found["copies"] = [{"id": one.id, "training": one.same_recording} for one in memory.copies]
        found["suspicious_share"] = memory.suspicious
        found["expected_share"] = memory.expected
        found["suspicious_distance"] = memory.threshold
        found["nearest"] = [asdict(one) for one in memory.neighbours[:NEAREST]]
    return found


def _same_recording(generated: FeatureSet, training: FeatureSet) -> np.ndarray:
    """For each generated clip the training clip with its fingerprint, or -1: int [N]."""
    heard = np.asarray(generated.level) >= SILENT_DB
    known = [_unit(values) for values in _fingerprints(training.sounds)]
    found = np.full(len(generated), -1)
    for at in range(0, len(generated), _BLOCK):
        rows = slice(at, at + _BLOCK)
        movement, detail = (_unit(values) for values in _fingerprints(generated.sounds[rows]))
        moves, details = movement @ known[0].T, detail @ known[1].T
        likeness = np.where((moves > MOVEMENT) & (details > SAME_DETAIL), details, -1.0)
        best = likeness.argmax(axis=1)
        same = (likeness.max(axis=1) > 0) & heard[rows]
        found[rows] = np.where(same, best, -1)
    return found


def _fingerprints(sounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Movement and detail (movement without what all bands share) of fingerprints [N, 256]."""
    movement = np.asarray(sounds, dtype=np.float32)
    grid = movement.reshape(len(movement), BANDS, CELLS)
    detail = (grid - grid.mean(axis=1, keepdims=True)).reshape(len(movement), -1)
    return movement, detail


def _unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9))
