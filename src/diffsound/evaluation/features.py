"""Clips, and what the classifier makes of them: each computed once, in batches, in bounded memory.

    cache = FeatureCache("cache/features.sqlite")
    real = extract(classifier, clips_of_data(data, data.where(split="valid")), cache=cache)
    made = extract(classifier, clips_of(Path("out"), ["rain-1", "rain-2"]), cache=cache)

A clip that cannot be read is left out, counted and named in `failed`.
"""

from __future__ import annotations

import hashlib
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

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
# Clips that wait for others of their length; beyond this, smaller batches are scored.
_WAITING = 4 * BATCH
_QUIETEST_DB = -120.0


class ScoredClip(Protocol):
    """A sound to be scored: a name, and a way to read the wave when its turn comes."""

    @property
    def id(self) -> str: ...

    @property
    def rate(self) -> int:
        """The sample rate at which the clip is stored."""
        ...

    def wave(self, sample_rate: int) -> np.ndarray:
        """float32 [samples] at that rate; a DiffsoundError if it cannot be read."""
        ...


@dataclass(frozen=True)
class FileClip:
    """A clip in an audio file."""

    id: str
    path: Path

    @property
    def rate(self) -> int:
        try:
            return int(soundfile.info(str(self.path)).samplerate)
        except soundfile.SoundFileError as error:
            raise AudioError(f"cannot read {self.path}: {error}") from error

    def wave(self, sample_rate: int) -> np.ndarray:
        return read_audio(self.path, sample_rate)


@dataclass(frozen=True)
class WaveClip:
    """A clip in memory, float32 [samples]."""

    id: str
    samples: np.ndarray
    rate: int

    def wave(self, sample_rate: int) -> np.ndarray:
        return resample(np.asarray(self.samples, dtype=np.float32), self.rate, sample_rate)


@dataclass(frozen=True)
class DataClip:
    """A clip of a prepared folder."""

    data: PreparedData
    position: int

    @property
    def id(self) -> str:
        return self.data.records[self.position].id

    @property
    def rate(self) -> int:
        return self.data.index.mel.sample_rate

    def wave(self, sample_rate: int) -> np.ndarray:
        return resample(self.data.wave(self.position), self.rate, sample_rate)


def clips_of(folder: Path, names: Iterable[str]) -> list[FileClip]:
    """The WAV files of a folder as clips, in the order of the names."""
    return [FileClip(name, folder / f"{name}.wav") for name in names]


def clips_of_data(data: PreparedData, positions: Sequence[int]) -> list[DataClip]:
    """Clips of a prepared folder by position."""
    return [DataClip(data, position) for position in positions]


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
        """The row of a key, or None."""
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

    def close(self) -> None:
        self._base.close()

    def __enter__(self) -> FeatureCache:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

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
    """Run the classifier over clips.

    seconds: cut or pad (with silence) every clip to this length, so that sets of clips of
    different lengths are compared fairly; None takes each at its own length.
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
    # Rows go to an unnamed file, mapped at the end: a set may be larger than the memory.
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
                raise InputError(f"two clips are named '{clip.id}'; names must be unique")
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


class _Batches:
    """Collects waves of equal length and runs the classifier over them."""

    def __init__(self, classifier: Classifier, layout: np.dtype[Any], size: int) -> None:
        self.classifier, self.layout, self.size = classifier, layout, max(1, size)
        self.front_end = MelFrontEnd(classifier.config.mel).to(classifier.mean.device)
        self.waiting: dict[int, list[tuple[int, np.ndarray]]] = {}

    def add(self, at: int, wave: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Take a wave; yields (place, row) of the clips whose turn came."""
        group = self.waiting.setdefault(len(wave), [])
        group.append((at, wave))
        if len(group) >= self.size:
            yield from self._run(len(wave))
        elif sum(map(len, self.waiting.values())) >= max(_WAITING, self.size):
            yield from self._run(max(self.waiting, key=lambda length: len(self.waiting[length])))

    def rest(self) -> Iterator[tuple[int, np.ndarray]]:
        """The clips that are still waiting."""
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


def _read(clip: ScoredClip, rate: int, failed: dict[str, str]) -> np.ndarray | None:
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
