"""Clips in memory for tests, as `PreparedData` holds them on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from diffsound.data.record import AudioLocation, Record
from diffsound.text.features import TextFeatures

T = TypeVar("T")


@dataclass
class _ByPosition(Generic[T]):
    values: Sequence[T]

    def of(self, i: int) -> T:
        return self.values[i]


class MemoryClips:
    """Waves [samples]; tokens [variants, F', L'] and encoded captions where a test has them."""

    def __init__(
        self,
        waves: Sequence[np.ndarray],
        records: Sequence[Record] | None = None,
        labels: Sequence[Sequence[str]] | None = None,
        tokens: Sequence[np.ndarray] = (),
        text: Sequence[TextFeatures] = (),
        sample_rate: int = 22050,
    ) -> None:
        self.waves = [np.asarray(wave, dtype=np.float32) for wave in waves]
        self.sample_rate = sample_rate
        records = records or [
            Record(
                id=f"clip-{i:06d}",
                audio=AudioLocation(""),
                labels=tuple(labels[i]) if labels else (),
            )
            for i in range(len(waves))
        ]
        self.records = [
            replace(record, seconds=len(wave) / sample_rate)
            for record, wave in zip(records, self.waves, strict=True)
        ]
        self._tokens, self._text = _ByPosition(tokens), _ByPosition(text)

    def __len__(self) -> int:
        return len(self.records)

    def wave(self, i: int) -> np.ndarray:
        return self.waves[i]

    def tokens(self, fingerprint: str | None = None) -> _ByPosition[np.ndarray]:
        return self._tokens

    def text(self, fingerprint: str | None = None) -> _ByPosition[TextFeatures]:
        return self._text
