"""A linear probe over an outside ear's embeddings: it names classes and measures distances.

    ear = load_ear("yamnet.tflite")
    probe = Probe(read_real_clips("esc50.npz", ear))
    probe.scores(ear(wave, rate)[None])      # log-probabilities [1, classes]

The probe is fitted on real clips only, so its verdict owes nothing to networks trained beside the
model.
"""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from diffsound.data.shards import PreparedData
from diffsound.data.sources import SourceReport, open_source
from diffsound.errors import DataError, DiffsoundError, InputError, MissingExtraError
from diffsound.evaluation.checks import TOP, hits, label_counts
from diffsound.evaluation.ears import OutsideEar, load_ear
from diffsound.evaluation.features import (
    FeatureCache,
    ScoredClip,
    clips_of_data,
    content_key,
    file_clip,
)
from diffsound.evaluation.metrics import Score, frechet_distance, mean_score, moments
from diffsound.evaluation.sets import Progress

FRECHET = "Fréchet distance"
# Fréchet distances are taken in this many principal components of the reference: a few hundred
# clips do not determine the covariance of a thousand features.
_COMPONENTS = 64
# Of the logistic regression over standardised embeddings.
_INVERSE_PENALTY, _ITERATIONS = 0.01, 300


@dataclass(frozen=True)
class Embeddings:
    """What an ear made of clips: `vectors` float32 [N, D] in the order of `ids`."""

    ids: tuple[str, ...]
    vectors: np.ndarray
    failed: dict[str, str] = field(default_factory=dict)


def embed_clips(
    ear: OutsideEar,
    clips: Iterable[ScoredClip],
    *,
    cache: FeatureCache | None = None,
    progress: Progress | None = None,
    what: str = "ear",
) -> Embeddings:
    """Let an ear hear clips, each at its own rate; those that cannot be read are named."""
    clips = list(clips)
    vectors: dict[str, np.ndarray] = {}
    failed: dict[str, str] = {}
    for done, clip in enumerate(clips, 1):
        try:
            wave, rate = clip.read()
        except DiffsoundError as error:
            failed[clip.id] = str(error)
        else:
            vectors[clip.id] = _embed(ear, wave, rate, cache)
        if progress is not None:
            progress(what, done, len(clips))
    if not vectors:
        reason = next(iter(failed.values()), "there are none")
        raise InputError(f"the ear {ear.name} can hear no clip: {reason}")
    widths = sorted({len(vector) for vector in vectors.values()})
    if len(widths) > 1:
        raise InputError(f"the ear {ear.name} gives embeddings of different lengths: {widths}")
    return Embeddings(tuple(vectors), np.stack(list(vectors.values())), failed)


def _embed(ear: OutsideEar, wave: np.ndarray, rate: int, cache: FeatureCache | None) -> np.ndarray:
    if cache is None or not ear.cached:
        return ear(wave, rate)
    key = content_key(wave, "ear", ear.sha256, str(rate))
    stored = cache.get(key)
    if stored is None:
        stored = ear(wave, rate).tobytes()
        cache.put({key: stored})
    return np.frombuffer(stored, dtype=np.float32)


@dataclass(frozen=True)
class RealClips:
    """Labelled real clips as an ear hears them; rows belong together.

    vectors float32 [N, D]; labels [N]; fit, reference: bool [N], the clips that the probe is fitted
    on and those that distances are measured to; parts: the names of the two, for reports.
    """

    vectors: np.ndarray
    labels: np.ndarray
    fit: np.ndarray
    reference: np.ndarray
    parts: dict[str, str]


def canonical(label: str) -> str:
    """A class name as all sides spell it: crying_baby is crying baby."""
    return " ".join(label.replace("_", " ").lower().split())


def read_real_clips(
    source: str | Path,
    ear: OutsideEar,
    *,
    fit: Sequence[str] = (),
    reference: Sequence[str] = (),
    cache: FeatureCache | None = None,
    progress: Progress | None = None,
) -> RealClips:
    """The real clips behind a probe; those with exactly one label.

    source: an .npz of embeddings by this ear (E [N, D], labels Y [N], folds F [N]), a folder made
    by `data prepare`, or the folder of a data source whose clips have labels (ESC-50, a corpus).
    fit, reference: names of folds or splits. By default train and valid; if there are none, the
    last fold is the reference and the others are fitted on.
    """
    source = Path(source)
    if source.suffix == ".npz":
        vectors, labels, folds = _read_npz(source)
        fitted, held = _choose_folds(source, folds, fit, reference)
    else:
        clips, labels, folds = _labelled(source)
        fitted, held = _choose_folds(source, folds, fit, reference)
        chosen = np.flatnonzero(np.isin(folds, [*fitted, *held]))
        heard = embed_clips(
            ear, (clips[at] for at in chosen), cache=cache, progress=progress, what="probe"
        )
        place = {clips[at].id: at for at in chosen}
        readable = [place[name] for name in heard.ids]
        vectors, labels, folds = heard.vectors, labels[readable], folds[readable]
    found = RealClips(
        vectors.astype(np.float32),
        labels,
        np.isin(folds, fitted),
        np.isin(folds, held),
        {"fit": ", ".join(fitted), "reference": ", ".join(held)},
    )
    if len(set(labels[found.fit])) < 2 or found.reference.sum() < 2:
        raise DataError(
            f"a probe needs clips of two classes to be fitted on and two clips to compare with; "
            f"{source} has {len(set(labels[found.fit]))} and {found.reference.sum()}"
        )
    return found


def _read_npz(source: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    try:
        with np.load(source, allow_pickle=False) as stored:
            vectors, labels, folds = (np.asarray(stored[name]) for name in "EYF")
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{source} must be an .npz file with E (embeddings), Y (labels) and F (folds): {error}"
        ) from error
    if vectors.ndim != 2 or not labels.shape == folds.shape == vectors.shape[:1]:
        raise DataError(f"{source}: E [N, D], Y [N] and F [N] do not match in length")
    return vectors, np.array([canonical(str(one)) for one in labels]), folds.astype(str)


def _labelled(source: Path) -> tuple[list[ScoredClip], np.ndarray, np.ndarray]:
    """Clips with one label each, their labels and their splits."""
    if (source / "index.json").is_file():
        data = PreparedData.open(source)
        records, clips = data.records, clips_of_data(data, range(len(data)))
    else:
        records = list(open_source(str(source)).records(SourceReport()))
        clips = [file_clip(record.id, Path(record.audio.path)) for record in records]
    kept = [at for at, record in enumerate(records) if len(record.labels) == 1]
    labels = np.array([canonical(records[at].labels[0]) for at in kept], dtype=str)
    folds = np.array([records[at].split for at in kept], dtype=str)
    return [clips[at] for at in kept], labels, folds


def _choose_folds(
    source: Path, folds: np.ndarray, fit: Sequence[str], reference: Sequence[str]
) -> tuple[list[str], list[str]]:
    there = sorted(set(folds.tolist()))
    unknown = next((name for name in (*fit, *reference) if name not in there), None)
    if unknown is not None or len(there) < 2:
        problem = f"has no fold '{unknown}'" if unknown else "needs labelled clips in two folds"
        raise DataError(f"{source} {problem}; it has: {', '.join(there) or 'none'}")
    held = list(reference) or (["valid"] if "valid" in there else there[-1:])
    known = ["train"] if "train" in there and "train" not in held else there
    fitted = list(fit) or [name for name in known if name not in held]
    if not fitted or set(fitted) & set(held):
        raise DataError(f"a probe cannot be fitted on the folds it is measured on: {held}")
    return fitted, held


class Probe:
    """Names the classes of an ear's embeddings; `labels` are all that it knows."""

    def __init__(self, real: RealClips) -> None:
        try:
            from sklearn.linear_model import LogisticRegression
            from sklearn.preprocessing import StandardScaler
        except ImportError as error:
            raise MissingExtraError("scikit-learn", "ear") from error
        known = real.vectors[real.fit]
        self._scaler = StandardScaler().fit(known)
        self._model = LogisticRegression(C=_INVERSE_PENALTY, max_iter=_ITERATIONS)
        self._model.fit(self._scaler.transform(known), real.labels[real.fit])
        self.labels: tuple[str, ...] = tuple(map(str, self._model.classes_))
        self.real = real

    def scores(self, vectors: np.ndarray) -> np.ndarray:
        """Log-probabilities [N, classes] of embeddings [N, D]."""
        width = self.real.vectors.shape[1]
        if vectors.shape[1] != width:
            raise InputError(
                f"the ear gives {vectors.shape[1]} numbers and the probe's clips have {width}; "
                "they were embedded by another ear"
            )
        return np.asarray(self._model.predict_log_proba(self._scaler.transform(vectors)))

    def places(self, names: Sequence[str]) -> np.ndarray:
        """The place of each class among the labels, -1 for those it does not know: int [N]."""
        known = {label: at for at, label in enumerate(self.labels)}
        return np.array([known.get(canonical(name), -1) for name in names], dtype=int)

    def figures(
        self,
        vectors: np.ndarray,
        targets: np.ndarray,
        reference: np.ndarray | None = None,
        seed: int = 0,
    ) -> dict[str, Score]:
        """Top-1 and top-5 as shares of clips, and the Fréchet distance to real clips.

        vectors [N, D]; targets: their classes as places [N]; reference: [M, D], by default the
        real clips held back.
        """
        if reference is None:
            reference = self.real.vectors[self.real.reference]
        logits = self.scores(vectors)
        found = {
            f"top-{k}": mean_score(f"top-{k}", hits(logits, targets, k), seed=seed) for k in TOP
        }
        if len(vectors) < 2:
            return found | {FRECHET: Score(FRECHET, None, "lower", note="needs two clips")}
        note = ""
        if len(vectors) <= _COMPONENTS:
            note = f"{len(vectors)} clips make it too large; compare with sets of this size only"
        value = principal_frechet(vectors, reference)
        return found | {FRECHET: Score(FRECHET, value, "lower", note=note)}

    def real_figures(self) -> dict[str, Score]:
        """The same of the real clips held back, with the distance to those it was fitted on."""
        vectors, labels = (of[self.real.reference] for of in (self.real.vectors, self.real.labels))
        places = self.places(labels.tolist())
        known = places >= 0
        return self.figures(vectors[known], places[known], self.real.vectors[self.real.fit])


def principal_frechet(sounds: np.ndarray, reference: np.ndarray) -> float:
    """Fréchet distance of [N, D] to [M, D] within the reference's first principal components."""
    centre = np.concatenate([sounds, reference]).mean(axis=0)
    basis = np.linalg.svd(reference - centre, full_matrices=False)[2][:_COMPONENTS].T
    given, known = ((one - centre) @ basis for one in (sounds, reference))
    return frechet_distance(moments(known), moments(given))


def read_manifest(path: str | Path) -> tuple[list[ScoredClip], list[str]]:
    """Clips and classes of a CSV file with the columns `file` (relative to it) and `class`."""
    path = Path(path)
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        clips = [file_clip(str(at), path.parent / row["file"]) for at, row in enumerate(rows)]
        classes = [canonical(row["class"]) for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} must be a CSV file with the columns file and class") from error
    if not clips:
        raise DataError(f"{path} names no sounds")
    return clips, classes


def hear_manifest(
    manifest: str | Path,
    plug: str | Path,
    clips: str | Path,
    *,
    fit: Sequence[str] = (),
    reference: Sequence[str] = (),
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Figures of the sounds that a manifest names, beside those of real clips; worst classes first.

    clips, fit, reference: of the probe, see `read_real_clips`.
    """
    ear = load_ear(plug)
    sounds, classes = read_manifest(manifest)
    probe = Probe(read_real_clips(clips, ear, fit=fit, reference=reference, progress=progress))
    targets = probe.places(classes)
    unknown = sorted({name for name, at in zip(classes, targets, strict=True) if at < 0})
    if unknown:
        raise InputError(f"the probe does not know the classes: {', '.join(unknown)}")
    heard = embed_clips(ear, sounds, progress=progress, what="sounds")
    if heard.failed:
        raise InputError(next(iter(heard.failed.values())))
    guesses = probe.scores(heard.vectors).argmax(axis=1)
    entries: list[dict[str, Any]] = [
        {
            "label": probe.labels[place],
            "clips": len(mine),
            "right": int((mine == place).sum()),
            "heard_as": label_counts(probe.labels, mine),
        }
        for place in np.unique(targets)
        for mine in (guesses[targets == place],)
    ]
    rows = {"real": probe.real_figures(), "given": probe.figures(heard.vectors, targets)}
    sizes = {"real": int(probe.real.reference.sum()), "given": len(sounds)}
    return {
        "ear": ear.name,
        "sha256": ear.sha256,
        "probe": probe.real.parts,
        "rows": {
            row: {"scores": {s.name: s.to_json() for s in of.values()}, "clips": sizes[row]}
            for row, of in rows.items()
        },
        "classes": sorted(entries, key=lambda entry: entry["right"] / entry["clips"]),
    }
