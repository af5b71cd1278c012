"""Clips, and what the classifier makes of them: each computed once, in batches.

    cache = FeatureCache("cache/features.sqlite")
    real = extract(classifier, clips_of_data(data, data.where(split="valid")), cache=cache)
    made = extract(classifier, clips_of(Path("out"), ["rain-1", "rain-2"]), cache=cache)

A clip that cannot be read is left out, counted and named in `failed`.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

from diffsound.audio.io import fit_length, read_audio, resample
from diffsound.audio.mel import MelFrontEnd
from diffsound.data.duplicates import BANDS, CELLS, sound_fingerprint
from diffsound.data.shards import PreparedData
from diffsound.errors import AudioError, DataError, DiffsoundError, InputError
from diffsound.judges.classifier import Classifier
from diffsound.judges.resnet import MIN_FRAMES

BATCH = 16
_QUIETEST_DB = -120.0


@dataclass(frozen=True)
class ScoredClip:
    """A sound to be scored: a name, and a function that reads it when its turn comes.

    read: float32 [samples] and their rate; a DiffsoundError if the clip cannot be read.
    """

    id: str
    read: Callable[[], tuple[np.ndarray, int]]

    def wave(self, sample_rate: int) -> np.ndarray:
        """float32 [samples] at this rate."""
        return resample(*self.read(), sample_rate)


def file_clip(name: str, path: Path) -> ScoredClip:
    """A clip in an audio file."""

    def read() -> tuple[np.ndarray, int]:
        try:
            rate = int(soundfile.info(str(path)).samplerate)
        except soundfile.SoundFileError as error:
            raise AudioError(f"cannot read {path}: {error}") from error
        return read_audio(path, rate), rate

    return ScoredClip(name, read)


def wave_clip(name: str, samples: np.ndarray, rate: int) -> ScoredClip:
    """A clip in memory, [samples]."""
    return ScoredClip(name, lambda: (np.asarray(samples, dtype=np.float32), rate))


def clips_of(folder: Path, names: Iterable[str]) -> list[ScoredClip]:
    """The WAV files of a folder as clips, in the order of the names."""
    return [file_clip(name, folder / f"{name}.wav") for name in names]


def clips_of_data(data: PreparedData, positions: Sequence[int]) -> list[ScoredClip]:
    """Clips of a prepared folder by position."""
    rate = data.index.mel.sample_rate
    return [
        ScoredClip(data.records[at].id, lambda at=at: (data.wave(at), rate))  # type: ignore[misc]
        for at in positions
    ]


class FeatureCache:
    """Rows of bytes by key; keys of different classifiers or settings never meet.

    One SQLite file: safe with several processes, intact after a crash, and no burden on the file
    system with a million small rows.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(self.path, timeout=60.0, isolation_level=None)
            self._base.execute("PRAGMA journal_mode=WAL")
            self._base.execute("PRAGMA synchronous=NORMAL")
            self._base.execute("CREATE TABLE IF NOT EXISTS rows (key TEXT PRIMARY KEY, row BLOB)")
        except OSError as error:
            raise DataError(f"cannot use the feature cache {self.path}: {error}") from error
        except sqlite3.Error as error:
            raise self._damaged(error) from error

    def get(self, key: str) -> bytes | None:
        try:
            found = self._base.execute("SELECT row FROM rows WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            raise self._damaged(error) from error
        return bytes(found[0]) if found else None

    def put(self, rows: Mapping[str, bytes]) -> None:
        """Keep rows, all or none of them."""
        try:
            self._base.execute("BEGIN")
            self._base.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?)", rows.items())
            self._base.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._damaged(error) from error

    def __enter__(self) -> FeatureCache:
        return self

    def __exit__(self, *unused: object) -> None:
        self._base.close()

    def _damaged(self, error: sqlite3.Error) -> DataError:
        return DataError(
            f"the feature cache {self.path} cannot be used ({error}); delete it, and it will be "
            "rebuilt"
        )


def content_key(wave: np.ndarray, *context: str) -> str:
    """A key for float32 samples under a context (the classifier's fingerprint, the settings)."""
    digest = hashlib.sha256("\0".join(context).encode())
    digest.update(b"\0")
    digest.update(np.ascontiguousarray(wave, dtype=np.float32).tobytes())
    return digest.hexdigest()


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
    window: float | None  # the length in seconds that every clip was cut or padded to
    failed: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)


def extract(
    classifier: Classifier,
    clips: Iterable[ScoredClip],
    *,
    seconds: float | None = None,
    batch_size: int = BATCH,
    cache: FeatureCache | None = None,
) -> FeatureSet:
    """Run the classifier over clips; consecutive ones of equal length share a batch.

    seconds: cut or pad (with silence) every clip to this length, so that sets of clips of
    different lengths are compared fairly; None takes each at its own length.
    """
    classifier.eval()
    fingerprint, rate = classifier.fingerprint, classifier.config.mel.sample_rate
    samples = None if seconds is None else round(seconds * rate)
    if samples == 0:
        raise InputError(f"clips cannot be cut to {seconds} s")
    front_end = MelFrontEnd(classifier.config.mel).to(classifier.mean.device)
    layout = np.dtype(
        [
            ("features", np.float32, (classifier.feature_dim,)),
            ("logits", np.float32, (len(classifier.config.labels),)),
            ("sound", np.int8, (BANDS * CELLS,)),
            ("level", np.float32),
            ("seconds", np.float32),
        ]
    )
    keys: dict[str, str] = {}  # by the clip's name
    rows: dict[str, np.ndarray] = {}  # by key
    failed: dict[str, str] = {}
    waiting: list[tuple[str, np.ndarray]] = []

    def score_waiting() -> None:
        if waiting:
            table = _score(classifier, front_end, [wave for _, wave in waiting], layout)
            made = dict(zip([key for key, _ in waiting], table, strict=True))
            rows.update(made)
            if cache is not None:
                cache.put({key: row.tobytes() for key, row in made.items()})
            waiting.clear()

    for clip in clips:
        if clip.id in keys or clip.id in failed:
            raise InputError(f"two clips are named '{clip.id}'; names must be unique")
        try:
            wave = np.asarray(clip.wave(rate), dtype=np.float32)
        except DiffsoundError as error:
            failed[clip.id] = str(error)
            continue
        if not len(wave) or not np.isfinite(wave).all():
            failed[clip.id] = "it has NaN or infinite samples" if len(wave) else "it has no samples"
            continue
        wave = wave if samples is None else fit_length(wave, samples)
        keys[clip.id] = key = content_key(wave, fingerprint)
        stored = cache.get(key) if cache is not None else None
        if stored is not None and len(stored) == layout.itemsize:
            rows[key] = np.frombuffer(stored, dtype=layout)[0]
            continue
        if len(waiting) == batch_size or (waiting and len(waiting[0][1]) != len(wave)):
            score_waiting()
        waiting.append((key, wave))
    score_waiting()
    table = np.array([rows[key] for key in keys.values()], dtype=layout)
    return FeatureSet(
        tuple(keys),
        tuple(keys.values()),
        table["features"],
        table["logits"],
        table["sound"],
        table["level"],
        table["seconds"],
        fingerprint,
        seconds,
        failed,
    )


def _score(
    classifier: Classifier, front_end: MelFrontEnd, waves: list[np.ndarray], layout: np.dtype[Any]
) -> np.ndarray:
    """Waves of equal length as rows of `layout`: [clips]."""
    samples, config = np.stack(waves), front_end.config
    least = (MIN_FRAMES - 1) * config.hop_length
    heard = np.pad(samples, ((0, 0), (0, max(0, least - samples.shape[1]))))
    with torch.inference_mode():
        mel = front_end(torch.from_numpy(heard).to(classifier.mean.device))
        made = classifier(mel)
    table = np.zeros(len(waves), dtype=layout)
    table["features"] = made.features.float().cpu().numpy()
    table["logits"] = made.logits.float().cpu().numpy()
    table["sound"] = [sound_fingerprint(one) for one in mel.cpu().numpy()]
    power = np.square(samples, dtype=np.float64).mean(axis=1)
    table["level"] = 10 * np.log10(np.maximum(power, 10 ** (_QUIETEST_DB / 10)))
    table["seconds"] = samples.shape[1] / config.sample_rate
    return table


def extract_rows(
    classifier: Classifier,
    out: Path,
    rows: Mapping[str, Iterable[str]],
    seconds: float,
    cache: FeatureCache,
) -> dict[str, FeatureSet]:
    """Run the classifier over OUT/ROW/NAME.wav of every row."""
    return {
        row: extract(classifier, clips_of(out / row, names), seconds=seconds, cache=cache)
        for row, names in rows.items()
    }


def check_comparable(real: FeatureSet, fake: FeatureSet) -> None:
    """Refuse two sets that were not measured in the same way, or one of which is empty."""
    for name, features in (("real", real), ("generated", fake)):
        if not len(features):
            reason = next(iter(features.failed.values()), "none were given")
            raise InputError(f"there are no {name} clips to score: {reason}")
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
