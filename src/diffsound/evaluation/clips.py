"""Clips to be scored: a name, and a way to read the wave when its turn comes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from diffsound.audio.io import AUDIO_FORMATS, read_audio, resample
from diffsound.data.shards import PreparedData
from diffsound.errors import InputError


class Clip(Protocol):
    """One clip."""

    @property
    def id(self) -> str: ...

    def wave(self, sample_rate: int) -> np.ndarray:
        """float32 [samples] at that rate; a DiffsoundError if it cannot be read."""
        ...


@dataclass(frozen=True)
class FileClip:
    """A clip in an audio file."""

    id: str
    path: Path

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
class PreparedClip:
    """A clip of a prepared folder."""

    data: PreparedData
    position: int

    @property
    def id(self) -> str:
        return self.data.records[self.position].id

    def wave(self, sample_rate: int) -> np.ndarray:
        wave = self.data.wave(self.position)
        return resample(wave, self.data.index.mel.sample_rate, sample_rate)


def clips_of_folder(folder: str | Path) -> list[FileClip]:
    """The audio files of a folder and its sub-folders, named by their paths without suffix."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    suffixes = {f".{name}" for name in AUDIO_FORMATS}
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in suffixes)
    if not found:
        raise InputError(f"{folder} holds no audio file ({', '.join(sorted(suffixes))})")
    clips = [FileClip(path.relative_to(folder).with_suffix("").as_posix(), path) for path in found]
    seen: set[str] = set()
    for clip in clips:
        if clip.id in seen:
            raise InputError(f"{folder} holds '{clip.id}' in two formats; keep one of them")
        seen.add(clip.id)
    return clips


def clips_of_data(data: PreparedData, positions: Sequence[int]) -> list[PreparedClip]:
    """Clips of a prepared folder by position."""
    return [PreparedClip(data, position) for position in positions]


def clips_of_waves(waves: Mapping[str, np.ndarray], sample_rate: int) -> Iterator[WaveClip]:
    """Clips in memory by name."""
    for name, wave in waves.items():
        yield WaveClip(name, wave, sample_rate)
