"""Clips held in memory, with the same face as a prepared folder."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from diffsound.data.record import AudioLocation, Record
from diffsound.errors import DataError
from diffsound.text.features import TextFeatures


class ArrayData:
    """Waves (and optionally tokens and encoded captions) that are already arrays.

    waves:   float [samples] each, mono, at `sample_rate`.
    records: what is known of each clip; made from `captions` and `labels` if not given.
    tokens:  uint16 [variants, F', L'] each. text: one batch of encoded captions each.
    """

    def __init__(
        self,
        waves: Sequence[np.ndarray],
        *,
        captions: Sequence[Sequence[str]] | None = None,
        labels: Sequence[Sequence[str]] | None = None,
        records: Sequence[Record] | None = None,
        tokens: Sequence[np.ndarray] | None = None,
        text: Sequence[TextFeatures] | None = None,
        sample_rate: int = 22050,
    ) -> None:
        self.sample_rate = sample_rate
        self._waves = [np.asarray(wave, dtype=np.float32) for wave in waves]
        if any(wave.ndim != 1 for wave in self._waves):
            raise DataError("every wave must be mono, of shape [samples]")
        given = {
            "captions": captions,
            "labels": labels,
            "records": records,
            "tokens": tokens,
            "text": text,
        }
        for name, values in given.items():
            if values is not None and len(values) != len(self._waves):
                raise DataError(f"{len(values)} {name} for {len(self._waves)} waves")
        if records is None:
            records = [
                Record(id=f"clip-{i:06d}", audio=AudioLocation(path=""), licence="cc0")
                for i in range(len(self._waves))
            ]
        self.records = [
            replace(
                record,
                captions=tuple(captions[i]) if captions is not None else record.captions,
                labels=tuple(labels[i]) if labels is not None else record.labels,
                seconds=len(self._waves[i]) / sample_rate,
            )
            for i, record in enumerate(records)
        ]
        self._tokens = tokens
        self._text = text

    def __len__(self) -> int:
        return len(self.records)

    def wave(self, i: int) -> np.ndarray:
        """float32 [samples]."""
        return self._waves[i]

    def tokens(self, fingerprint: str | None = None) -> ArrayTokens:
        """The tokens given; arrays carry no fingerprint to choose by."""
        if self._tokens is None:
            raise DataError("these arrays were given without tokens")
        return ArrayTokens(self._tokens)

    def text(self, fingerprint: str | None = None) -> ArrayText:
        """The encoded captions given."""
        if self._text is None:
            raise DataError("these arrays were given without encoded captions")
        return ArrayText(self._text)

    def where(
        self,
        *,
        split: str | None = None,
        labels: Collection[str] | None = None,
        licences: Collection[str] | None = None,
    ) -> list[int]:
        """Positions of the clips that meet every condition given (of labels: one of them)."""
        return [
            i
            for i, record in enumerate(self.records)
            if (split is None or record.split == split)
            and (labels is None or not set(labels).isdisjoint(record.labels))
            and (licences is None or record.licence in licences)
        ]


class ArrayTokens:
    """Tokens by clip position."""

    def __init__(self, tokens: Sequence[np.ndarray]) -> None:
        self._tokens = tokens

    def of(self, i: int) -> np.ndarray:
        """uint16 [variants, F', L']."""
        return self._tokens[i]


class ArrayText:
    """Encoded captions by clip position."""

    def __init__(self, text: Sequence[TextFeatures]) -> None:
        self._text = text

    def of(self, i: int) -> TextFeatures:
        """One entry per caption."""
        return self._text[i]
