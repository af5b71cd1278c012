"""Training items from prepared data: waves, tokens with text, soundscapes made on the fly.

Every `item(index, rng)` is a pure function of its arguments; see loaders.py for why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from diffsound.data import augment as aug
from diffsound.data.augment import AugmentConfig
from diffsound.data.clip import to_int16
from diffsound.data.index import NO_TOKEN
from diffsound.errors import ConfigError, DataError

if TYPE_CHECKING:
    from diffsound.data.record import Record
    from diffsound.text.features import TextFeatures


class ClipData(Protocol):
    """Clips by position, as `PreparedData` and `ArrayData` hold them."""

    @property
    def records(self) -> Sequence[Record]: ...

    def wave(self, i: int) -> np.ndarray:
        """float32 [samples] at the data's sample rate."""
        ...


class TokenData(Protocol):
    """Tokens of the clips under one codec."""

    def of(self, i: int) -> np.ndarray:
        """uint16 [variants, F', L']."""
        ...


class TextData(Protocol):
    """Encoded captions of the clips under one text encoder."""

    def of(self, i: int) -> TextFeatures:
        """A batch: one entry for each distinct caption of the clip."""
        ...


class TokenisedData(ClipData, Protocol):
    """Clips whose tokens and encoded captions are stored too."""

    def tokens(self, fingerprint: str | None = None) -> TokenData: ...

    def text(self, fingerprint: str | None = None) -> TextData: ...


def label_names(data: ClipData, indices: Sequence[int]) -> list[str]:
    """The sorted first labels of the clips: a class's number is its place in this list."""
    return sorted({data.records[i].labels[0] for i in indices if data.records[i].labels})


class WaveCache:
    """Decoded waves kept as 16-bit integers, as shards hold them, in one block of memory
    (160 MB per hour).

    The block is filled before DataLoader workers are forked, so they share it instead of decoding
    the same files again every epoch.
    """

    def __init__(self, data: ClipData, indices: Sequence[int]) -> None:
        waves = [to_int16(data.wave(i)) for i in indices]
        self._edges = np.cumsum([0, *(len(wave) for wave in waves)])
        self._block = np.concatenate(waves) if waves else np.zeros(0, np.int16)
        self._place = {index: place for place, index in enumerate(indices)}
        self.records = data.records

    def wave(self, i: int) -> np.ndarray:
        """float32 [samples]."""
        place = self._place[i]
        stored = self._block[self._edges[place] : self._edges[place + 1]]
        return stored.astype(np.float32) / np.float32(32768)

    @property
    def bytes(self) -> int:
        """Memory held by the waves."""
        return self._block.nbytes


class WaveDataset:
    """Windows of clips: {"wave": float32 [samples], "id": str, "label": int}.

    Without `augment` an item is the first `samples` of its clip, zero-padded. The label is the
    place of the clip's first label in `labels`, or -1.
    """

    def __init__(
        self,
        data: ClipData,
        indices: Sequence[int],
        samples: int,
        augment: AugmentConfig | None = None,
        *,
        labels: Sequence[str] | None = None,
        cache: bool = False,
    ) -> None:
        if samples < 1:
            raise ConfigError(f"a window needs at least one sample, not {samples}")
        self.indices = _some(indices)
        self.records = data.records
        self.samples = samples
        self.augment = augment
        self.labels = list(labels) if labels is not None else label_names(data, self.indices)
        self._label_number = {name: number for number, name in enumerate(self.labels)}
        self._waves: ClipData = WaveCache(data, self.indices) if cache else data

    def __len__(self) -> int:
        return len(self.indices)

    def label(self, index: int) -> int:
        """The class number of an item, -1 for none: what a balanced sampler groups by."""
        names = self.records[self.indices[index]].labels
        return self._label_number.get(names[0], -1) if names else -1

    def item(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        """One window of the clip at `index`."""
        clip = self.indices[index]
        if self.augment is None:
            wave = np.zeros(self.samples, dtype=np.float32)
            start = self._waves.wave(clip)[: self.samples]
            wave[: len(start)] = start
        else:
            wave = self._augmented(clip, self.augment, rng)
        return {
            "wave": np.ascontiguousarray(wave, dtype=np.float32),
            "id": self.records[clip].id,
            "label": self.label(index),
        }

    def _augmented(self, clip: int, how: AugmentConfig, rng: np.random.Generator) -> np.ndarray:
        wave = self._window(clip, how, rng)
        if how.mix_probability and rng.random() < how.mix_probability:
            other = self._window(self._other(rng), how, rng)
            wave = aug.mix_at(wave, other, rng.uniform(*how.mix_snr_db))
        wave = wave * np.float32(aug.decibels(rng.uniform(*how.gain_db)))
        return aug.keep_peak(wave)

    def _window(self, clip: int, how: AugmentConfig, rng: np.random.Generator) -> np.ndarray:
        wave = self._played(clip, how, rng)
        if len(wave) < self.samples:
            if how.fill == "loop":
                # One length more than needed, so that the random crop also shifts the phase.
                wave = aug.loop_to(wave, self.samples + len(wave))
            elif how.fill == "chain" and not self._stays_silent(how, rng):
                wave = self._chain(wave, how, rng)
        wave = aug.random_window(wave, self.samples, rng)
        return np.roll(wave, int(rng.integers(self.samples))) if how.roll else wave

    def _played(self, clip: int, how: AugmentConfig, rng: np.random.Generator) -> np.ndarray:
        """The clip at a random speed; of a long one only the part a window can need."""
        wave = self._waves.wave(clip)
        if not how.speed or rng.random() >= how.speed_probability:
            return wave
        factor = aug.draw_speed(how.speed, rng)
        needed = int(np.ceil(self.samples * factor)) + 1
        return aug.change_speed(
            aug.random_window(wave, needed, rng) if len(wave) > needed else wave, factor
        )

    @staticmethod
    def _stays_silent(how: AugmentConfig, rng: np.random.Generator) -> bool:
        return how.chain_silence > 0 and rng.random() < how.chain_silence

    def _chain(self, wave: np.ndarray, how: AugmentConfig, rng: np.random.Generator) -> np.ndarray:
        """Other clips after this one until the window is full."""
        pieces, filled = [wave], len(wave)
        # Bounded, for a set of empty clips would never fill the window.
        for _ in range(64):
            if filled >= self.samples:
                break
            piece = self._played(self._other(rng), how, rng)
            pieces.append(piece)
            filled += len(piece)
        return np.concatenate(pieces)

    def _other(self, rng: np.random.Generator) -> int:
        return self.indices[int(rng.integers(len(self.indices)))]


class TokenDataset:
    """Tokens with one encoded caption:

    {"tokens": int64 [F', L'], "features": float32 [S, D], "mask": bool [S], "pooled": [D], "id"}.

    Each item is a random variant (alignment) of its clip with a random one of its captions; with
    `augment=False` always the first of both. With `widths` (a ladder such as 54, 108, 216 columns)
    every grid is cut at random to the widest rung it fills, so that a loader can make batches of
    equal widths with `bucket_by=dataset.width`; clips narrower than the first rung are left out
    and named in `left_out`.
    """

    def __init__(
        self,
        data: TokenisedData,
        indices: Sequence[int],
        *,
        codec: str | None = None,
        encoder: str | None = None,
        widths: Sequence[int] | None = None,
        augment: bool = True,
    ) -> None:
        """codec, encoder: fingerprints, needed only if the data holds more than one of a kind."""
        self.records = data.records
        self.tokens = data.tokens(codec)
        self.text = data.text(encoder)
        self.augment = augment
        self.indices: list[int] = []
        self.left_out: list[str] = []
        self._widths: list[int] = []
        for clip in _some(indices):
            width = _rung(self.tokens.of(clip).shape[-1], widths)
            if width:
                self.indices.append(clip)
                self._widths.append(width)
            else:
                self.left_out.append(self.records[clip].id)
        if not self.indices:
            raise DataError("no clip has tokens as wide as the smallest of the widths asked for")

    def __len__(self) -> int:
        return len(self.indices)

    def width(self, index: int) -> int:
        """Columns L' of the item's grid."""
        return self._widths[index]

    def item(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        """One grid of the clip at `index` and one of its captions."""
        clip, width = self.indices[index], self._widths[index]
        variants, text = self.tokens.of(clip), self.text.of(clip)
        if self.augment:
            grid = _without_gaps(variants[int(rng.integers(len(variants)))])
            width = min(width, grid.shape[-1])
            at = int(rng.integers(0, grid.shape[-1] - width + 1))
            caption = int(rng.integers(len(text)))
        else:
            grid, at, caption = _without_gaps(variants[0]), 0, 0
        real = int(text.mask[caption].sum())
        return {
            "tokens": grid[:, at : at + width].astype(np.int64),
            "features": text.features[caption, :real].float(),
            "mask": text.mask[caption, :real],
            "pooled": text.pooled[caption].float(),
            "id": self.records[clip].id,
        }


def _without_gaps(grid: np.ndarray) -> np.ndarray:
    """grid [F', L'] without the columns after its end, which only longer variants have."""
    return grid[:, grid[0] != NO_TOKEN]


def _rung(width: int, widths: Sequence[int] | None) -> int:
    """The widest rung a grid of this width fills, 0 for none."""
    if widths is None:
        return width
    return max((rung for rung in widths if rung <= width), default=0)


def _some(indices: Sequence[int]) -> list[int]:
    if len(indices) == 0:
        raise DataError("no clips: the split or filter chosen leaves none")
    return [int(index) for index in indices]
