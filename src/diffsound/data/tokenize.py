"""Tokens of a prepared folder's clips, so that a decoder trains without running the codec."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field, model_validator

from diffsound.audio.io import fit_length, read_audio
from diffsound.audio.mel import MelConfig, MelFrontEnd
from diffsound.codec.codec import Codec
from diffsound.config import Config
from diffsound.data.augment import change_speed
from diffsound.data.clip import array_bytes
from diffsound.data.derived import Clip, DerivedTask, make_derived, make_folder
from diffsound.data.engines import Engine
from diffsound.data.index import (
    NO_TOKEN,
    ShardInfo,
    TokensIndex,
    check_same_settings,
    read_index,
    write_index,
)
from diffsound.data.shards import PreparedData
from diffsound.errors import DataError

# A codec, the mel it was trained on, and its fingerprint: what `diffsound.bundle.load_codec` gives.
LoadCodec = Callable[[], tuple[Codec, MelConfig, str]]


class TokenizeSettings(Config):
    """How clips are laid under the codec's columns.

    variants: alignments stored per clip. A sound that begins a little later has other tokens; a
        decoder that has seen only one alignment learns it by heart. Clips longer than `seconds`
        give crops spread over their length instead.
    seconds: every grid covers this long, silence added or the rest cropped (None: the clip's own
        length). The paper's 5×53 grid is 9.845 s.
    speed: the variants after the first are played faster or slower, by up to this share (0.06 is a
        semitone), so that they have other tokens all through and not only another alignment.
    """

    variants: int = Field(default=1, ge=1, le=64)
    seconds: float | None = Field(default=None, gt=0, le=600)
    speed: float = Field(default=0.0, ge=0, le=0.5)

    @model_validator(mode="after")
    def _has_variants_to_change(self) -> TokenizeSettings:
        if self.speed and self.variants == 1:
            raise ValueError("speed changes the variants after the first; ask for more than one")
        return self


def tokenize(
    folder: str | Path,
    load: LoadCodec,
    settings: TokenizeSettings | None = None,
    engine: Engine | None = None,
    progress: Callable[[ShardInfo], None] | None = None,
) -> TokensIndex:
    """Write `folder/tokens/<fingerprint>`; a rerun makes only what is missing."""
    settings = settings or TokenizeSettings()
    data = PreparedData.open(folder)
    codec, mel, fingerprint = load()
    if mel.sample_rate != data.index.mel.sample_rate:
        raise DataError(
            f"the codec hears {mel.sample_rate} Hz, {folder} is prepared at "
            f"{data.index.mel.sample_rate} Hz; prepare it for this codec"
        )
    if codec.codebook_size > NO_TOKEN:
        raise DataError(f"{codec.codebook_size} codes do not fit 16 bits")
    out = data.folder / "tokens" / fingerprint
    make_folder(out)
    index = TokensIndex(
        complete=False,
        fingerprint=fingerprint,
        rows=codec.rows,
        codebook_size=codec.codebook_size,
        time_stride=codec.time_stride,
        mel=mel,
        variants=settings.variants,
        seconds=settings.seconds,
        speed=settings.speed,
    )
    before = read_index(TokensIndex, out)
    if before is None:
        write_index(index, out)
    else:
        made = {name: getattr(before, name) for name in TokenizeSettings.model_fields}
        check_same_settings(made, settings.model_dump(), out)
    tasks = [
        DerivedTask(
            kind="tokens",
            number=number,
            clips=shard,
            clips_folder=str(data.folder),
            folder=str(out),
            fingerprint=fingerprint,
            settings=settings.model_dump(),
            load=load,
            make=token_entries,
        )
        for number, shard in enumerate(data.index.shards)
    ]
    shards = make_derived(tasks, engine, progress)
    index = index.model_copy(update={"complete": True, "shards": shards})
    write_index(index, out)
    return index


def token_entries(
    model: tuple[Codec, MelConfig, str], settings: Mapping[str, Any], clips: Iterator[Clip]
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """One uint16 [variants, F', L'] array per clip."""
    codec, mel, _ = model
    front_end = MelFrontEnd(mel)
    for clip in clips:
        wave = read_audio(io.BytesIO(clip.flac), mel.sample_rate)
        tokens = clip_tokens(wave, codec, front_end, TokenizeSettings(**settings))
        yield clip.fields["id"], {"npy": array_bytes(tokens)}


@torch.inference_mode()
def clip_tokens(
    wave: np.ndarray, codec: Codec, front_end: MelFrontEnd, settings: TokenizeSettings
) -> np.ndarray:
    """wave [samples] -> tokens uint16 [variants, F', L'].

    L' is the samples over those of a column, rounded up, as generation counts them. Where variants
    of other speed are shorter than the longest, NO_TOKEN fills their columns.
    """
    config = front_end.config
    column = config.hop_length * codec.time_stride
    fixed = None if settings.seconds is None else round(settings.seconds * config.sample_rate)

    if settings.speed:
        waves, ends = played(wave, settings, column, fixed)
    else:
        waves = aligned(wave, settings.variants, column, fixed)
        ends = [waves.shape[1]] * len(waves)
    columns = math.ceil(waves.shape[1] / column)
    waves = np.pad(waves, ((0, 0), (0, columns * column - waves.shape[1])))
    mel = front_end(torch.from_numpy(waves))[..., : columns * codec.time_stride]
    tokens = codec.encode(mel).numpy().astype(np.uint16)
    for grid, end in zip(tokens, ends, strict=True):
        grid[:, math.ceil(end / column) :] = NO_TOKEN
    return tokens


def played(
    wave: np.ndarray, settings: TokenizeSettings, column: int, samples: int | None
) -> tuple[np.ndarray, list[int]]:
    """wave [n] delayed and at other speeds, [variants, samples], and where each of them ends."""
    factors = speeds(settings.variants, settings.speed)
    waves = [
        np.pad(change_speed(wave, factor), (variant * column // settings.variants, 0))
        for variant, factor in enumerate(factors)
    ]
    longest = samples if samples is not None else max(len(wave) for wave in waves)
    ends = [samples if samples is not None else len(wave) for wave in waves]
    return np.stack([fit_length(wave, longest) for wave in waves]), ends


def speeds(variants: int, limit: float) -> list[float]:
    """A factor for each variant: 1, then spread between 1 / (1 + limit) and 1 + limit.

    Multiples of the golden ratio fill the range evenly and in no order, so that the delay of a
    variant says nothing of its speed.
    """
    golden = (math.sqrt(5) - 1) / 2
    spread = [2 * (variant * golden % 1) - 1 for variant in range(1, variants)]
    return [1.0, *((1 + limit) ** exponent for exponent in spread)]


def aligned(wave: np.ndarray, variants: int, column: int, samples: int | None) -> np.ndarray:
    """wave [n] under `variants` alignments, float32 [variants, samples].

    A wave longer than `samples` is cropped at evenly spread places. Otherwise each variant is
    delayed by another part of a column; without `samples` there is room for the latest one.
    """
    if samples is not None and len(wave) > samples:
        starts = np.linspace(0, len(wave) - samples, variants).round().astype(int)
        return np.stack([wave[start : start + samples] for start in starts])
    delays = [v * column // variants for v in range(variants)]
    length = samples if samples is not None else len(wave) + delays[-1]
    return np.stack([fit_length(np.pad(wave, (delay, 0)), length) for delay in delays])
