"""Tokens and text features of a prepared folder, one shard for each of its shards.

They are stored, so that a decoder trains without running the codec or the text encoder.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from pydantic import Field, model_validator

from diffsound.audio.io import fit_length, read_audio
from diffsound.audio.mel import MelConfig, MelFrontEnd
from diffsound.codec.codec import Codec
from diffsound.config import Config
from diffsound.data.clip import array_bytes
from diffsound.data.datasets import change_speed
from diffsound.data.engines import MapEngine, SerialEngine
from diffsound.data.prepare import batches, remove_stale, shard_name
from diffsound.data.shards import (
    NO_TOKEN,
    PreparedData,
    ShardInfo,
    TextIndex,
    TokensIndex,
    check_same_settings,
    read_fields,
    read_index,
    read_sidecar,
    read_span,
    shard_members,
    write_index,
    write_shard,
    writing,
)
from diffsound.errors import DataError
from diffsound.text.features import TextEncoder
from diffsound.threads import torch_threads

# One model per process, by fingerprint: a worker makes many shards and loads once.
_loaded: dict[str, Any] = {}


Clip = tuple[dict[str, Any], bytes]  # as stored: its fields and its FLAC file
DerivedT = TypeVar("DerivedT", TokensIndex, TextIndex)


@dataclass(frozen=True)
class Derivation(Generic[DerivedT]):
    """How `data/<kind>/<fingerprint>` is made, shard by shard, in any process.

    load: returns the model, in the process that does the work. make: (model, settings, clips) ->
    the shard's entries (id, {suffix: bytes}) in the clips' order. Both must be picklable.
    """

    data: Path
    index: DerivedT
    settings: dict[str, Any]
    load: Callable[[], Any]
    make: Callable[[Any, Mapping[str, Any], Iterator[Clip]], Iterator[tuple[str, dict[str, bytes]]]]

    @property
    def folder(self) -> Path:
        return self.data / self.index.kind / self.index.fingerprint

    def begin(self) -> DerivedT:
        """The existing index; if there is none, an incomplete one is written."""
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        found = read_index(type(self.index), self.folder)
        if found is None:
            write_index(self.index, self.folder)
        return found or self.index

    def run(
        self,
        shards: Sequence[ShardInfo],
        engine: MapEngine | None,
        progress: Callable[[ShardInfo], None] | None,
    ) -> DerivedT:
        """Make the shards that are missing; returns the complete index."""
        made = []
        for info in (engine or SerialEngine()).map(self.shard, enumerate(shards)):
            made.append(info)
            if progress is not None:
                progress(info)
        remove_stale(self.folder, self.index.kind, keep=len(shards))
        index = self.index.model_copy(update={"complete": True, "shards": tuple(made)})
        write_index(index, self.folder)
        return index

    def shard(self, numbered: tuple[int, ShardInfo]) -> ShardInfo:
        """Make the shard of one shard of clips, unless it exists."""
        number, clips = numbered
        path = self.folder / shard_name(self.index.kind, number)
        fingerprint = self.index.fingerprint
        # Changes when the clips or the settings change.
        described = json.dumps([fingerprint, self.settings, clips.sha256], sort_keys=True)
        plan = hashlib.sha256(described.encode()).hexdigest()
        sidecar = read_sidecar(path)
        if sidecar is None or sidecar.get("plan") != plan:
            if fingerprint not in _loaded:
                _loaded.clear()
                _loaded[fingerprint] = self.load()
            with torch_threads(1):
                entries = self.make(_loaded[fingerprint], self.settings, self._clips(clips))
                sidecar = write_shard(path, entries, {"plan": plan})
        return ShardInfo(
            name=path.name,
            clips=len(sidecar["members"]),
            seconds=clips.seconds,
            bytes=sidecar["bytes"],
            sha256=sidecar["sha256"],
        )

    def _clips(self, shard: ShardInfo) -> Iterator[Clip]:
        path = self.data / shard.name
        for spans in shard_members(self.data, shard).values():
            yield read_fields(path, spans["json"]), read_span(path, spans["flac"])


# A codec, the mel it was trained on, and its fingerprint, as `model.bundle.load_codec` gives them.
LoadCodec = Callable[[], tuple[Codec, MelConfig, str]]


class TokenizeSettings(Config):
    """How clips are aligned with the codec's columns.

    variants: alignments stored per clip. A sound that starts a little later has other tokens; a
        decoder that sees only one alignment memorises it. Clips longer than `seconds` give crops
        spread over their length instead.
    seconds: length of every grid; clips are padded with silence or cropped to it (None: the clip's
        own length). The paper's 5×53 grid is 9.845 s.
    speed: play the variants after the first faster or slower by up to this share (0.06 is a
        semitone), so that all of their tokens differ and not only the alignment.
    """

    variants: int = Field(default=1, ge=1, le=64)
    seconds: float | None = Field(default=None, gt=0, le=600)
    speed: float = Field(default=0.0, ge=0, le=0.5)

    @model_validator(mode="after")
    def _has_variants_to_change(self) -> TokenizeSettings:
        if self.speed and self.variants == 1:
            raise ValueError(
                "speed changes the variants after the first; variants must be 2 or more"
            )
        return self


def tokenize(
    folder: str | Path,
    load: LoadCodec,
    settings: TokenizeSettings | None = None,
    engine: MapEngine | None = None,
    progress: Callable[[ShardInfo], None] | None = None,
) -> TokensIndex:
    """Write `folder/tokens/<fingerprint>`; a rerun makes only what is missing."""
    settings = settings or TokenizeSettings()
    data = PreparedData.open(folder)
    codec, mel, fingerprint = load()
    if mel.sample_rate != data.index.mel.sample_rate:
        raise DataError(
            f"the codec works at {mel.sample_rate} Hz, {folder} is prepared at "
            f"{data.index.mel.sample_rate} Hz; prepare it for this codec"
        )
    if codec.codebook_size > NO_TOKEN:
        raise DataError(f"{codec.codebook_size} codes do not fit into 16 bits")
    index = TokensIndex(
        complete=False,
        fingerprint=fingerprint,
        rows=codec.rows,
        codebook_size=codec.codebook_size,
        time_stride=codec.time_stride,
        mel=mel,
        **settings.model_dump(),
    )
    how = Derivation(data.folder, index, settings.model_dump(), load, token_entries)
    before = how.begin()
    made = {name: getattr(before, name) for name in TokenizeSettings.model_fields}
    check_same_settings(made, how.settings, how.folder)
    return how.run(data.index.shards, engine, progress)


def token_entries(
    model: tuple[Codec, MelConfig, str], settings: Mapping[str, Any], clips: Iterator[Clip]
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """One uint16 [variants, F', L'] array per clip."""
    codec, mel, _ = model
    front_end = MelFrontEnd(mel)
    for fields, flac in clips:
        wave = read_audio(io.BytesIO(flac), mel.sample_rate)
        tokens = clip_tokens(wave, codec, front_end, TokenizeSettings(**settings))
        yield fields["id"], {"npy": array_bytes(tokens)}


@torch.inference_mode()
def clip_tokens(
    wave: np.ndarray, codec: Codec, front_end: MelFrontEnd, settings: TokenizeSettings
) -> np.ndarray:
    """wave [samples] -> tokens uint16 [variants, F', L'].

    L' is the number of samples divided by those of a column, rounded up, as in generation. Variants
    of another speed that are shorter than the longest end in columns of NO_TOKEN.
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
    """wave [n] delayed and at other speeds, [variants, samples], and the end of each."""
    factors = speeds(settings.variants, settings.speed)
    waves = [
        np.pad(change_speed(wave, factor), (variant * column // settings.variants, 0))
        for variant, factor in enumerate(factors)
    ]
    longest = samples if samples is not None else max(len(wave) for wave in waves)
    ends = [samples if samples is not None else len(wave) for wave in waves]
    return np.stack([fit_length(wave, longest) for wave in waves]), ends


def speeds(variants: int, limit: float) -> list[float]:
    """A factor for each variant: 1, then values between 1 / (1 + limit) and 1 + limit.

    Multiples of the golden ratio fill the range evenly but in no order, so that a variant's delay
    says nothing about its speed.
    """
    golden = (math.sqrt(5) - 1) / 2
    spread = [2 * (variant * golden % 1) - 1 for variant in range(1, variants)]
    return [1.0, *((1 + limit) ** exponent for exponent in spread)]


def aligned(wave: np.ndarray, variants: int, column: int, samples: int | None) -> np.ndarray:
    """wave [n] under `variants` alignments, float32 [variants, samples].

    A wave longer than `samples` is cropped at evenly spread places. Otherwise each variant is
    delayed by another part of a column; without `samples` the length fits the latest one.
    """
    if samples is not None and len(wave) > samples:
        starts = np.linspace(0, len(wave) - samples, variants).round().astype(int)
        return np.stack([wave[start : start + samples] for start in starts])
    delays = [v * column // variants for v in range(variants)]
    length = samples if samples is not None else len(wave) + delays[-1]
    return np.stack([fit_length(np.pad(wave, (delay, 0)), length) for delay in delays])


# Texts encoded at a time; a shard's texts are gathered so that repeats are encoded once.
_BATCH = 64


def encode_text(
    folder: str | Path,
    load: Callable[[], TextEncoder],
    encoder_config: Mapping[str, Any],
    engine: MapEngine | None = None,
    progress: Callable[[ShardInfo], None] | None = None,
) -> TextIndex:
    """Write `folder/text/<fingerprint>`; a rerun makes only what is missing.

    encoder_config: kept in the index, so that the encoder can be loaded again.
    """
    data = PreparedData.open(folder)
    encoder = load()
    index = TextIndex(
        complete=False,
        fingerprint=encoder.fingerprint,
        dim=encoder.dim,
        encoder=dict(encoder_config),
    )
    how = Derivation(data.folder, index, {}, load, text_entries)
    how.begin()
    return how.run(data.index.shards, engine, progress)


def text_entries(
    encoder: TextEncoder, settings: Mapping[str, Any], clips: Iterator[Clip]
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """One .npz per clip: its captions' features, in their order, trimmed to real tokens."""
    # A clip without captions gets the empty text, which means "no condition".
    captions = {fields["id"]: fields["captions"] or [""] for fields, _ in clips}
    distinct = list(dict.fromkeys(text for texts in captions.values() for text in texts))
    encoded: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # features [S, D] and pooled [D]
    # Sorted by length, so that batches have little padding.
    for batch in batches(sorted(distinct, key=lambda text: (len(text), text)), _BATCH):
        made = encoder(batch)
        for text, features, mask, pooled in zip(
            batch, made.features, made.mask, made.pooled, strict=True
        ):
            encoded[text] = features[mask].half().numpy(), pooled.half().numpy()
    for clip_id, texts in captions.items():
        features, pooled = zip(*(encoded[text] for text in texts), strict=True)
        buffer = io.BytesIO()
        np.savez(
            buffer,
            features=np.concatenate(features),  # [sum of S, D]
            lengths=np.array([len(one) for one in features], dtype=np.int64),
            pooled=np.stack(pooled),
        )
        yield clip_id, {"npz": buffer.getvalue()}
