"""Training items from prepared data: augmented windows of waves, and tokens with a text.

Every `item(index, rng)` is a pure function of its arguments; see loaders.py for why. Waves are
float32 [samples], mono, nominally within [-1, 1].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from pydantic import Field, model_validator

from diffsound.audio import mixing
from diffsound.config import Config
from diffsound.data.clip import to_int16
from diffsound.data.shards import NO_TOKEN, PreparedData, TextData
from diffsound.errors import ConfigError, DataError
from diffsound.text.mbtg import MaskedTextConfig, mask_based_text

if TYPE_CHECKING:
    from diffsound.data.record import Record

# How often the speed is changed. Not always: a resampled clip lacks the highest frequencies (the
# filter's slope, and the whole top where it was slowed down), and a model that only ever hears such
# clips fails on real ones.
SPEED_SHARE = 0.5


class AugmentConfig(Config):
    """How a clip is varied on its way into a batch.

    fill: what fills a window that is longer than the clip: silence, the clip repeated, or other
        clips of the set one after another (a codec or vocoder learns nothing from silence).
    chain_silence: how often "chain" leaves the rest silent, since short sounds end in silence.
    gain_db: range of the change of level.
    speed: largest change of speed, tape-like: pitch and tempo together; 0.06 is one semitone.
    """

    fill: Literal["silence", "loop", "chain"] = "silence"
    chain_silence: float = Field(default=0.0, ge=0.0, le=1.0)
    gain_db: tuple[float, float] = (-6.0, 3.0)
    speed: float = Field(default=0.0, ge=0.0, le=0.5)

    @model_validator(mode="after")
    def _ordered(self) -> AugmentConfig:
        if self.gain_db[0] > self.gain_db[1]:
            raise ValueError("gain_db must go from low to high")
        return self


def random_window(wave: np.ndarray, samples: int, rng: np.random.Generator) -> np.ndarray:
    """A random crop of a longer wave, or a shorter one at a random place in silence: [samples]."""
    spare = len(wave) - samples
    at = int(rng.integers(0, abs(spare) + 1))
    if spare >= 0:
        return wave[at : at + samples]
    window = np.zeros(samples, dtype=np.float32)
    window[at : at + len(wave)] = wave
    return window


def change_speed(wave: np.ndarray, factor: float) -> np.ndarray:
    """Play the wave `factor` times as fast, pitch included: [samples] -> about samples/factor."""
    import soxr

    if factor == 1.0 or len(wave) == 0:
        return wave
    # soxr only uses the ratio. Its faster "LQ" filter would remove the top fifth of the spectrum.
    return np.asarray(soxr.resample(wave, factor, 1.0, quality="MQ"), dtype=np.float32)


def draw_speed(limit: float, rng: np.random.Generator) -> float:
    """A factor log-uniform between 1/(1 + limit) and 1 + limit."""
    return float(np.exp(rng.uniform(-1.0, 1.0) * np.log1p(limit)))


class ClipData(Protocol):
    """Clips by position, as `PreparedData` holds them."""

    @property
    def records(self) -> Sequence[Record]: ...

    def wave(self, i: int) -> np.ndarray:
        """float32 [samples] at the data's sample rate."""
        ...


def label_names(data: ClipData, indices: Sequence[int]) -> list[str]:
    """The sorted first labels of the clips; a class's number is its index in this list."""
    return sorted({data.records[i].labels[0] for i in indices if data.records[i].labels})


class WaveCache:
    """Decoded waves as 16-bit integers, as in the shards, in one block of memory (160 MB per hour).

    The block is filled before DataLoader workers are forked. They share it, and files are decoded
    once instead of every epoch.
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


class WaveDataset:
    """Windows of clips: {"wave": float32 [samples], "id": str, "label": int}.

    Without `augment` an item is the first `samples` of its clip, zero-padded. The label is the
    index of the clip's first label in `labels`, or -1.
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
        text: TextData | None = None,
    ) -> None:
        """text: the clips' encoded captions; items then have one of them, drawn at random (the
        first without `augment`), as "pooled" [D]."""
        if samples < 1:
            raise ConfigError(f"a window needs at least one sample, not {samples}")
        self.indices = _some(indices)
        self.records = data.records
        self.samples = samples
        self.augment = augment
        self.labels = list(labels) if labels is not None else label_names(data, self.indices)
        self._label_number = {name: number for number, name in enumerate(self.labels)}
        self._waves: ClipData = WaveCache(data, self.indices) if cache else data
        self._text = text

    def __len__(self) -> int:
        return len(self.indices)

    def label(self, index: int) -> int:
        """The class number of an item, -1 for none, for balanced sampling."""
        names = self.records[self.indices[index]].labels
        return self._label_number.get(names[0], -1) if names else -1

    def item(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        """One window of the clip at `index`."""
        clip = self.indices[index]
        if self.augment is None:
            start = self._waves.wave(clip)[: self.samples]
            wave = np.pad(start, (0, self.samples - len(start)))
        else:
            wave = self._window(clip, self.augment, rng)
            wave = wave * np.float32(mixing.decibels(rng.uniform(*self.augment.gain_db)))
            wave = mixing.keep_peak(wave)
        item = {
            "wave": np.ascontiguousarray(wave, dtype=np.float32),
            "id": self.records[clip].id,
            "label": self.label(index),
        }
        if self._text is not None:
            pooled = self._text.of(clip).pooled
            item["pooled"] = pooled[int(rng.integers(len(pooled))) if self.augment else 0].float()
        return item

    def _window(self, clip: int, how: AugmentConfig, rng: np.random.Generator) -> np.ndarray:
        wave = self._played(clip, how, rng)
        if len(wave) < self.samples:
            if how.fill == "loop":
                # One length more than needed, so that the random crop also shifts the phase.
                wave = np.tile(wave, 1 + -(-self.samples // max(1, len(wave))))
            elif how.fill == "chain":
                ends = how.chain_silence > 0 and rng.random() < how.chain_silence
                wave = wave if ends else self._chain(wave, how, rng)
        return random_window(wave, self.samples, rng)

    def _played(self, clip: int, how: AugmentConfig, rng: np.random.Generator) -> np.ndarray:
        """The clip at a random speed; of a long one only the part that a window needs."""
        wave = self._waves.wave(clip)
        if not how.speed or rng.random() >= SPEED_SHARE:
            return wave
        factor = draw_speed(how.speed, rng)
        needed = int(np.ceil(self.samples * factor)) + 1
        part = random_window(wave, needed, rng) if len(wave) > needed else wave
        return change_speed(part, factor)

    def _chain(self, wave: np.ndarray, how: AugmentConfig, rng: np.random.Generator) -> np.ndarray:
        """Other clips after this one until the window is full."""
        pieces, filled = [wave], len(wave)
        # Bounded: a set of empty clips would never fill the window.
        for _ in range(64):
            if filled >= self.samples:
                break
            other = self.indices[int(rng.integers(len(self.indices)))]
            pieces.append(self._played(other, how, rng))
            filled += len(pieces[-1])
        return np.concatenate(pieces)


class TokenDataset:
    """Tokens with one encoded caption:

    {"tokens": int64 [F', L'], "features": float32 [S, D], "mask": bool [S], "pooled": [D], "id"}.

    An item is a random variant (alignment) of its clip with one of its captions, drawn at random;
    with `augment=False` it is always the first variant and the first caption.
    """

    def __init__(
        self,
        data: PreparedData,
        indices: Sequence[int],
        *,
        codec: str | None = None,
        encoder: str | None = None,
        augment: bool = True,
        text: bool = True,
    ) -> None:
        """codec, encoder: fingerprints, needed only if the data holds more than one of a kind.

        text: False leaves the captions out, which then need not be encoded.
        """
        self.records = data.records
        self.tokens = data.tokens(codec)
        self.text = data.text(encoder) if text else None
        self.augment = augment
        self.indices = _some(indices)
        self._widths = [self.tokens.of(clip).shape[-1] for clip in self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def width(self, index: int) -> int:
        """Columns L' of the clip's widest variant."""
        return self._widths[index]

    def item(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        """One grid of the clip at `index` and one of its captions."""
        clip = self.indices[index]
        variants = self.tokens.of(clip)
        variant = int(rng.integers(len(variants))) if self.augment else 0
        grid = variants[variant]
        item = {
            # Without the columns that only longer variants have.
            "tokens": grid[:, grid[0] != NO_TOKEN].astype(np.int64),
            "id": self.records[clip].id,
        }
        if self.text is None:
            return item
        text = self.text.of(clip)
        caption = int(rng.integers(len(text))) if self.augment else 0
        real = int(text.mask[caption].sum())
        return {
            **item,
            "features": text.features[caption, :real].float(),
            "mask": text.mask[caption, :real],
            "pooled": text.pooled[caption].float(),
        }


class LabelTokenDataset(TokenDataset):
    """Tokens with a text made from the clip's labels, a new one every time:

    {"tokens": int64 [F', L'], "text": str, "id"}. Clips without labels are left out.
    """

    def __init__(
        self,
        data: PreparedData,
        indices: Sequence[int],
        how: MaskedTextConfig,
        *,
        codec: str | None = None,
        augment: bool = True,
    ) -> None:
        labelled = [index for index in indices if data.records[index].labels]
        if not labelled:
            raise DataError(f"{data.folder} has no labels to make texts from; leave out 'labels'")
        super().__init__(data, labelled, codec=codec, augment=augment, text=False)
        self.how = how

    def item(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        """One grid of the clip at `index` and a masked text from its labels."""
        drawn = super().item(index, rng)
        labels = self.records[self.indices[index]].labels
        return {**drawn, "text": mask_based_text(labels, rng, **self.how.model_dump())}


def _some(indices: Sequence[int]) -> list[int]:
    if len(indices) == 0:
        raise DataError("no clips: the chosen split or filter leaves none")
    return [int(index) for index in indices]
