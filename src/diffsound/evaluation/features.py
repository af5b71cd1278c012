"""Features of clips: each computed once, in batches, in memory that does not grow with the set.

    cache = FeatureCache("cache/features.sqlite")
    real = extract(classifier, clips_of_data(data, data.where(split="valid")), cache=cache)
    made = extract(classifier, clips_of_folder("out"), cache=cache)

A clip that cannot be read is left out, counted and named in `failed`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from diffsound.audio.io import fit_length
from diffsound.audio.mel import MelFrontEnd
from diffsound.data.duplicates import BANDS, CELLS, sound_fingerprint
from diffsound.errors import DiffsoundError, InputError
from diffsound.evaluation.classifier import Classifier
from diffsound.evaluation.clips import Clip
from diffsound.evaluation.feature_cache import FeatureCache, content_key
from diffsound.evaluation.standardise import MIN_FRAMES

BATCH = 16
# Clips that wait for others of their length; more are scored in smaller batches.
_WAITING = 4 * BATCH
_QUIETEST_DB = -120.0


@dataclass(frozen=True)
class FeatureSet:
    """What the classifier made of a set of clips; rows of all arrays belong together.

    features [N, D]; logits [N, classes]; sounds int8 [N, 256], the fingerprints that near-copies
    share; level [N], RMS in dB of full scale; seconds [N]; keys, equal for identical samples.
    """

    ids: tuple[str, ...]
    keys: tuple[str, ...]
    features: np.ndarray
    logits: np.ndarray
    sounds: np.ndarray
    level: np.ndarray
    seconds: np.ndarray
    classifier: str  # fingerprint
    window: float | None  # the seconds every clip was cut or padded to
    failed: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)


def extract(
    classifier: Classifier,
    clips: Iterable[Clip],
    *,
    seconds: float | None = None,
    batch_size: int = BATCH,
    cache: FeatureCache | None = None,
    progress: Callable[[int], None] | None = None,
) -> FeatureSet:
    """Run the classifier over clips.

    seconds: cut or pad (with silence) every clip to this length, so that sets of clips of
    different lengths are compared fairly; None takes each as long as it is.
    progress: told the number of clips done.
    """
    classifier.eval()
    fingerprint = classifier.fingerprint
    rate = classifier.config.mel.sample_rate
    samples = None if seconds is None else round(seconds * rate)
    if samples is not None and samples < 1:
        raise InputError(f"clips cannot be cut to {seconds} s")
    layout = _row_layout(classifier)
    ids: list[str] = []
    keys: list[str] = []
    failed: dict[str, str] = {}
    names: set[str] = set()
    batches = _Batches(classifier, layout, batch_size)
    # Rows go to a file without a name, mapped at the end: the set may be larger than the memory.
    with tempfile.TemporaryFile() as rows:

        def keep(done: Iterable[tuple[int, np.ndarray]]) -> None:
            made = {}
            for at, row in done:
                rows.seek(at * layout.itemsize)
                rows.write(row.tobytes())
                made[keys[at]] = row.tobytes()
            if cache is not None and made:
                cache.put(made)

        for clip in clips:
            if clip.id in names:
                raise InputError(f"two clips are named '{clip.id}'; names tell clips apart")
            names.add(clip.id)
            wave = _read(clip, rate, failed)
            if wave is not None:
                if samples is not None:
                    wave = fit_length(wave, samples)
                at, key = len(ids), content_key(wave, fingerprint)
                ids.append(clip.id)
                keys.append(key)
                stored = cache.get(key) if cache is not None else None
                if stored is not None and len(stored) == layout.itemsize:
                    rows.seek(at * layout.itemsize)
                    rows.write(stored)
                else:
                    keep(batches.add(at, wave))
            if progress is not None:
                progress(len(names))
        keep(batches.rest())
        rows.flush()
        table = _table(rows, layout, len(ids))
    return FeatureSet(
        tuple(ids),
        tuple(keys),
        table["features"],
        table["logits"],
        table["sound"],
        table["level"],
        table["seconds"],
        fingerprint,
        seconds,
        failed,
    )


def check_comparable(real: FeatureSet, fake: FeatureSet) -> None:
    """Refuse two sets that were not measured alike, or of which one is empty."""
    for name, features in (("real", real), ("generated", fake)):
        if not len(features):
            reason = next(iter(features.failed.values()), "none was given")
            raise InputError(f"there is no {name} clip to score: {reason}")
    if real.classifier != fake.classifier:
        raise InputError(
            f"the sets were measured by different classifiers ({real.classifier}, "
            f"{fake.classifier}); measure both with one"
        )
    if real.window != fake.window:
        raise InputError(
            f"the sets were cut to different lengths ({real.window} s, {fake.window} s); "
            "measure both with the same seconds"
        )


class _Batches:
    """Collects waves of equal length and runs the classifier over them."""

    def __init__(self, classifier: Classifier, layout: np.dtype[Any], size: int) -> None:
        self.classifier, self.layout, self.size = classifier, layout, max(1, size)
        self.front_end = MelFrontEnd(classifier.config.mel).to(classifier.mean.device)
        self.waiting: dict[int, list[tuple[int, np.ndarray]]] = {}

    def add(self, at: int, wave: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Take a wave; yields (place, row) of the clips that got their turn."""
        group = self.waiting.setdefault(len(wave), [])
        group.append((at, wave))
        if len(group) >= self.size:
            yield from self._run(len(wave))
        elif sum(map(len, self.waiting.values())) >= max(_WAITING, self.size):
            yield from self._run(max(self.waiting, key=lambda length: len(self.waiting[length])))

    def rest(self) -> Iterator[tuple[int, np.ndarray]]:
        """The clips that still wait."""
        for length in list(self.waiting):
            yield from self._run(length)

    def _run(self, length: int) -> Iterator[tuple[int, np.ndarray]]:
        group = self.waiting.pop(length)
        config = self.classifier.config.mel
        waves = np.stack([wave for _, wave in group])
        heard = np.pad(waves, ((0, 0), (0, max(0, (MIN_FRAMES - 1) * config.hop_length - length))))
        with torch.inference_mode():
            mel = self.front_end(torch.from_numpy(heard).to(self.classifier.mean.device))
            made = self.classifier(mel)
        table = np.zeros(len(group), dtype=self.layout)
        table["features"] = made.features.float().cpu().numpy()
        table["logits"] = made.logits.float().cpu().numpy()
        table["sound"] = [sound_fingerprint(one) for one in mel.cpu().numpy()]
        power = np.square(waves, dtype=np.float64).mean(axis=1)
        table["level"] = 10 * np.log10(np.maximum(power, 10 ** (_QUIETEST_DB / 10)))
        table["seconds"] = length / config.sample_rate
        for (at, _), row in zip(group, table, strict=True):
            yield at, row


def _read(clip: Clip, rate: int, failed: dict[str, str]) -> np.ndarray | None:
    try:
        wave = clip.wave(rate)
    except DiffsoundError as error:
        failed[clip.id] = str(error)
        return None
    if not len(wave):
        failed[clip.id] = "it has no samples"
    elif not np.isfinite(wave).all():
        failed[clip.id] = "it has NaN or infinite samples"
    return None if clip.id in failed else np.asarray(wave, dtype=np.float32)


def _row_layout(classifier: Classifier) -> np.dtype[Any]:
    return np.dtype(
        [
            ("features", np.float32, (classifier.feature_dim,)),
            ("logits", np.float32, (len(classifier.config.labels),)),
            ("sound", np.int8, (BANDS * CELLS,)),
            ("level", np.float32),
            ("seconds", np.float32),
        ]
    )


def _table(rows: Any, layout: np.dtype[Any], count: int) -> np.ndarray:
    """The rows as a mapped array; it stays mapped after the file object is closed."""
    if not count:
        return np.zeros(0, dtype=layout)
    return np.memmap(rows, dtype=layout, mode="r", shape=(count,))
