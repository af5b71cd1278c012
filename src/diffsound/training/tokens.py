"""What the stages that learn from tokens and texts share: settings, grids, loaders, texts.

Tokens and text features are found in the data, or made before training. A batch needs grids of one
width, so they are fitted to the rungs of a ladder: cut to the widest rung they fill or padded with
the codec's tokens of silence to the next, which also teaches how sounds end.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
import torch
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from diffsound.audio.mel import MelFrontEnd
from diffsound.codec.codec import Codec
from diffsound.config import Config
from diffsound.data.datasets import TokenDataset
from diffsound.data.derived import TokenizeSettings, encode_text, tokenize
from diffsound.data.engines import available_cores, make_engine
from diffsound.data.loaders import (
    EpochLoader,
    FixedSampler,
    ItemSampler,
    epoch_rng,
)
from diffsound.data.record import Record
from diffsound.data.shards import PreparedData, TextIndex, TokensIndex, read_index
from diffsound.errors import DataError
from diffsound.text.encoders import load_text_encoder
from diffsound.text.features import TextEncoder, TextEncoderConfig, TextFeatures
from diffsound.training.assemble import load_codec
from diffsound.training.config import DataConfig, RunConfig, Share
from diffsound.training.stage import Process, balanced_sampler, clips_of, spread, train_loader


class MixedFolder(Config):
    """Another prepared folder, and the share of an epoch's clips that come from it."""

    path: str
    share: Annotated[float, Field(gt=0, lt=1)]


class TokenDataConfig(DataConfig):
    """Which clips are seen, from one or more folders.

    mix: further prepared folders, such as soundscapes, tokenised with the same codec.
    """

    mix: tuple[MixedFolder, ...] = ()

    @model_validator(mode="after")
    def _leaves_room(self) -> Self:
        if sum(folder.share for folder in self.mix) >= 1:
            raise ValueError("the shares of mix must sum to less than 1; the rest is --data")
        return self


class GridConfig(Config):
    """How grids are fitted to batches.

    widths: the ladder, in columns; None leaves every grid as it is, one bucket per width.
    fill: "silence" pads a grid to the next rung (needs the run's codec); "crop" cuts it to the
        widest rung it fills and leaves out clips that fill none.
    narrower: share of draws in which a clip wider than `narrower_to` is cut at random to any rung
        from that one up to its own. Most of a long sound is like the rest of it, and a short grid
        costs less.
    wider: share of draws in which a clip of at most `wider_below` columns is padded to any of the
        wider rungs: short sounds in long grids, as people ask for them.
    loop_from: clips of at least this width are continuous (rain, a clock). They are cut to the
        widest rung they fill, and repeated instead of padded with silence.
    longer: share of draws in which such a clip is repeated to any of the wider rungs.
    """

    widths: tuple[PositiveInt, ...] | None = None
    fill: Literal["crop", "silence"] = "crop"
    wider: Share = 0.0
    wider_below: PositiveInt | None = None
    narrower: Share = 0.0
    narrower_to: PositiveInt | None = None
    loop_from: PositiveInt | None = None
    longer: Share = 0.0

    @model_validator(mode="after")
    def _makes_sense(self) -> GridConfig:
        if self.widths is not None and list(self.widths) != sorted(set(self.widths)):
            raise ValueError("widths must rise")
        if self.wider and (self.fill != "silence" or self.widths is None):
            raise ValueError("wider needs fill 'silence' and a ladder of widths")
        if self.narrower and (self.widths is None or self.narrower_to not in self.widths):
            raise ValueError("narrower needs narrower_to, one of the widths")
        if self.longer and self.loop_from is None:
            raise ValueError("longer needs loop_from, the width from which clips may be repeated")
        if self.fill == "silence" and self.widths is None:
            raise ValueError("fill 'silence' needs a ladder of widths")
        return self


class TextFacts(NamedTuple):
    """A text encoder's fingerprint, width and config."""

    fingerprint: str
    dim: int
    encoder: TextEncoderConfig


class TokenRun(RunConfig):
    """A run on a codec's tokens and texts.

    codec, text_encoder: a codec's run or bundle, and an encoder; they make tokens and text features
        that the data does not have yet. Without them the data must have both.
    tokens, text: fingerprints of the codec and encoder; filled in when the run starts, so that it
        can never be resumed with another codec's tokens or another encoder's text.
    """

    data: TokenDataConfig = TokenDataConfig()
    codec: str | None = None
    tokenize: TokenizeSettings = TokenizeSettings()
    tokens: str | None = None
    text_encoder: TextEncoderConfig | None = None
    text: str | None = None
    grids: GridConfig = GridConfig()
    valid_clips: NonNegativeInt = 256

    @model_validator(mode="after")
    def _knows_silence(self) -> Self:
        if self.grids.fill == "silence" and self.codec is None:
            raise ValueError("grids.fill 'silence' needs the codec's run or bundle: --set codec=…")
        return self

    def folders(self) -> tuple[str, ...]:
        return tuple(folder.path for folder in self.data.mix)

    def find_tokens(self, data: PreparedData) -> TokensIndex:
        """The tokens of the data; missing ones are made, also for the folders mixed in."""
        tokens = tokens_of(data, self.codec, self.tokens, self.tokenize)
        for path in self.folders():
            tokens_of(PreparedData.open(path), self.codec, tokens.fingerprint, self.tokenize)
        return tokens

    def find_text(self, data: PreparedData) -> TextFacts:
        """The encoder of the data's captions; missing text features are made."""
        index = text_of(data, self.text_encoder, self.text)
        for path in self.folders():
            text_of(PreparedData.open(path), self.text_encoder, index.fingerprint)
        encoder = self.text_encoder or TextEncoderConfig.model_validate(index.encoder)
        return TextFacts(index.fingerprint, index.dim, encoder)


def tokens_of(
    data: PreparedData, codec: str | None, wanted: str | None, how: TokenizeSettings
) -> TokensIndex:
    """The index of the data's tokens; with a codec, missing tokens are made now.

    codec: a run or bundle. wanted: the fingerprint the tokens must have.
    """
    if codec is None:
        return data.tokens(wanted).info
    _, _, fingerprint = load_codec(codec)
    if wanted is not None and wanted != fingerprint:
        raise DataError(
            f"the run uses the tokens of codec {wanted}, {codec} is {fingerprint}; "
            "give the same codec or start another run"
        )
    found = read_index(TokensIndex, data.folder / "tokens" / fingerprint)
    if found is not None and found.complete:
        return found
    _say(f"making tokens of {len(data)} clips of {data.folder} with the codec in {codec}")
    load = functools.partial(load_codec, str(Path(codec).absolute()))
    workers = min(available_cores(), len(data.index.shards))
    return tokenize(data.folder, load, how, make_engine("processes", workers))


def text_of(data: PreparedData, encoder: TextEncoderConfig | None, wanted: str | None) -> TextIndex:
    """The index of the data's text features; with an encoder, missing ones are made now."""
    if encoder is None:
        return data.text(wanted).info
    fingerprint = load_text_encoder(encoder).fingerprint
    check_encoder(fingerprint, wanted)
    found = read_index(TextIndex, data.folder / "text" / fingerprint)
    if found is not None and found.complete:
        return found
    _say(f"encoding the captions of {len(data)} clips of {data.folder}")
    load = functools.partial(load_text_encoder, encoder)
    return encode_text(data.folder, load, encoder.model_dump(mode="json"), make_engine("serial"))


def check_encoder(found: str, wanted: str | None) -> None:
    """Refuse text features of one encoder for a run that learns from another's."""
    if wanted is not None and wanted != found:
        raise DataError(
            f"the run uses the text features of encoder {wanted}, this one is {found}; "
            "give the same encoder or start another run"
        )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Ladder:
    """The rungs grids are fitted to. silence: [F'] tokens of a silent column."""

    config: GridConfig
    silence: np.ndarray | None = None

    def rung(self, width: int) -> int:
        """The width a grid of `width` columns is fitted to; 0 leaves it out."""
        widths = self.config.widths
        if widths is None:
            return width
        if self.silence is not None and not self.loops(width):
            return next((rung for rung in widths if rung >= width), widths[-1])
        return max((rung for rung in widths if rung <= width), default=0)

    def loops(self, width: int) -> bool:
        """Whether a clip of `width` columns is repeated where it ends."""
        return self.config.loop_from is not None and width >= self.config.loop_from

    def fit(self, grid: np.ndarray, width: int, at: float, loops: bool = False) -> np.ndarray:
        """grid [F', L'] as [F', width]: the part at `at` (0..1), or all of it and then silence.

        loops: repeat the grid, starting at `at`, instead of adding silence.
        """
        spare = grid.shape[-1] - width
        if spare >= 0:
            start = round(at * spare)
            return grid[:, start : start + width]
        if loops:
            body = grid[:, :-1]  # the last column is seldom full
            columns = int(at * body.shape[-1]) + np.arange(width)
            return body[:, columns % body.shape[-1]]
        assert self.silence is not None
        return np.concatenate([grid, np.tile(self.silence[:, None], (1, -spare))], axis=1)


def ladder_for(config: TokenRun, codec: Codec | None, front_end: MelFrontEnd) -> Ladder:
    """The run's ladder of widths, with the codec's tokens of silence if it pads with them."""
    if codec is None or config.grids.fill != "silence":
        return Ladder(config.grids)
    return Ladder(config.grids, silent_column(codec, front_end))


@torch.no_grad()
def silent_column(codec: Codec, front_end: MelFrontEnd) -> np.ndarray:
    """The codec's tokens [F'] of silence, away from any sound."""
    columns = 33
    samples = columns * codec.time_stride * front_end.config.hop_length
    mel = front_end(torch.zeros(1, samples))[..., : columns * codec.time_stride]
    return codec.encode(mel)[0, :, columns // 2].numpy()


class GridDataset:
    """The clips of one or more folders on the rungs of a ladder.

    An index is a pair of clip and rung (`index = clip · rungs + rung`), so that a sampler chooses
    both and a loader can bucket by width.
    """

    def __init__(self, parts: Sequence[TokenDataset], ladder: Ladder, augment: bool = True) -> None:
        self.parts = list(parts)
        self.ladder = ladder
        self.augment = augment
        fitting = [
            (number, item, part.width(item))
            for number, part in enumerate(self.parts)
            for item in range(len(part))
            if ladder.rung(part.width(item))
        ]
        self.clips = [(number, item) for number, item, _ in fitting]
        self.lengths = [width for _, _, width in fitting]
        self.widths = sorted({ladder.rung(width) for width in self.lengths})
        given = ladder.config
        if (given.wider or given.narrower or given.longer) and given.widths:
            self.widths = sorted({*self.widths, *given.widths})
        if not self.widths:
            raise DataError("no clip is as wide as the smallest of grids.widths; add a smaller one")
        self.natural = [self.widths.index(ladder.rung(width)) for width in self.lengths]

    def __len__(self) -> int:
        return len(self.clips) * len(self.widths)

    def width(self, index: int) -> int:
        """Columns of the item's grid, for bucketing."""
        return self.widths[index % len(self.widths)]

    def record(self, clip: int) -> Record:
        part, item = self.clips[clip]
        dataset = self.parts[part]
        return dataset.records[dataset.indices[item]]

    def label_count(self, clip: int) -> int:
        """A clip's number of labels, for the curriculum."""
        return len(self.record(clip).labels)

    def item(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        """One grid of the clip, fitted to its rung, with one of its captions."""
        clip = index // len(self.widths)
        part, item = self.clips[clip]
        drawn = self.parts[part].item(item, rng)
        at = float(rng.random()) if self.augment else 0.0
        loops = self.ladder.loops(self.lengths[clip])
        return {**drawn, "tokens": self.ladder.fit(drawn["tokens"], self.width(index), at, loops)}


class RungSampler:
    """Puts the clips of another sampler on rungs: their own, or a wider or narrower one."""

    def __init__(self, clips: ItemSampler, dataset: GridDataset, seed: int) -> None:
        self.clips = clips
        self.seed = seed
        self.rungs = len(dataset.widths)
        self.natural = np.asarray(dataset.natural)
        config = dataset.ladder.config
        below = config.wider_below or max(dataset.lengths)
        self.share = np.where(np.asarray(dataset.lengths) <= below, config.wider, 0.0)
        if config.loop_from is not None:
            loops = np.asarray(dataset.lengths) >= config.loop_from
            self.share = np.where(loops, config.longer, self.share)
        self.narrower = config.narrower
        self.narrowest = dataset.widths.index(config.narrower_to) if config.narrower_to else 0

    def epoch_items(self, epoch: int) -> np.ndarray:
        """[clips of the epoch] int64."""
        clips = np.asarray(self.clips.epoch_items(epoch), dtype=np.int64)
        rng = np.random.default_rng([self.seed, epoch, 0x51DE])
        rung = self.natural[clips]
        room = self.rungs - 1 - rung
        widened = (rng.random(len(clips)) < self.share[clips]) & (room > 0)
        more = 1 + np.floor(rng.random(len(clips)) * room).astype(np.int64)
        rung = np.where(widened, rung + more, rung)
        if self.narrower:  # some of the others move to any rung from the narrowest to their own
            room = rung - self.narrowest
            chosen = ~widened & (room > 0) & (rng.random(len(rung)) < self.narrower)
            lower = self.narrowest + np.floor(rng.random(len(rung)) * room).astype(np.int64)
            rung = np.where(chosen, lower, rung)
        return clips * self.rungs + rung


class MixedSampler:
    """An epoch of one folder's clips plus fixed shares of other folders' clips."""

    def __init__(self, groups: Sequence[Sequence[int]], samplers: Sequence[ItemSampler], seed: int):
        """groups[i]: the clips that samplers[i] counts from 0."""
        self.groups = [np.asarray(group, dtype=np.int64) for group in groups]
        self.samplers = list(samplers)
        self.seed = seed

    def epoch_items(self, epoch: int) -> np.ndarray:
        """The clips of all folders, shuffled together."""
        drawn = [
            group[np.asarray(sampler.epoch_items(epoch))]
            for group, sampler in zip(self.groups, self.samplers, strict=True)
        ]
        return epoch_rng(self.seed, epoch).permutation(np.concatenate(drawn))


def mixed_sampler(dataset: GridDataset, how: TokenDataConfig, seed: int) -> ItemSampler:
    """All clips of the first part, and of the others as many as give them their shares."""
    records = [dataset.record(clip) for clip in range(len(dataset.clips))]
    if missing := how.favour.keys() - {record.source for record in records}:
        raise DataError(f"data.favour names {sorted(missing)}, but no clip is from there")
    groups: list[list[int]] = [[] for _ in dataset.parts]
    for clip, (part, _) in enumerate(dataset.clips):
        groups[part].append(clip)
    if not all(groups):
        raise DataError("a folder of data.mix has no clip that fits grids.widths")
    shares = [folder.share for folder in how.mix]
    whole = len(groups[0]) / (1.0 - sum(shares))
    sizes = [len(groups[0]), *(max(1, round(share * whole)) for share in shares)]
    samplers = [
        balanced_sampler([records[clip] for clip in group], how, seed + number, size)
        for number, (group, size) in enumerate(zip(groups, sizes, strict=True))
    ]
    return samplers[0] if len(samplers) == 1 else MixedSampler(groups, samplers, seed)


def token_clips(config: TokenRun, data: PreparedData, split: str, augment: bool) -> TokenDataset:
    """The split's clips as tokens with one of their captions."""
    indices = clips_of(data, config.data, split)
    return TokenDataset(data, indices, codec=config.tokens, encoder=config.text, augment=augment)


def grid_loader(
    config: TokenRun, dataset: GridDataset, sampler: ItemSampler, process: Process
) -> EpochLoader:
    """Batches of grids of one width each."""
    rungs = RungSampler(sampler, dataset, config.train.seed)
    return train_loader(config, dataset, rungs, process, bucket_by=dataset.width)


def fixed_grids(config: TokenRun, clips: TokenDataset, ladder: Ladder) -> tuple[EpochLoader, int]:
    """Grids of some held-out clips, the same at every call, and the number of clips."""
    dataset = GridDataset([clips], ladder, augment=False)
    chosen = spread(range(len(dataset.clips)), config.valid_clips)
    items = FixedSampler([c * len(dataset.widths) + dataset.natural[c] for c in chosen])
    size = config.train.batch_size
    loader = EpochLoader(dataset, items, size, bucket_by=dataset.width, drop_last=False)
    return loader, len(chosen)


def batch_text(batch: dict[str, Any], encoder: TextEncoder) -> TextFeatures:
    """The text features of a batch, stored or encoded now."""
    if "features" in batch:
        return TextFeatures(batch["features"], batch["mask"], batch["pooled"])
    return encoder(batch["text"]).to(batch["tokens"].device)


def empty_text(encoder: TextEncoder) -> TextFeatures:
    """The encoded empty text, rounded as stored captions are."""
    text = encoder([""])
    return TextFeatures(text.features.half().float(), text.mask, text.pooled.half().float())


def drop_text(
    text: TextFeatures, empty: TextFeatures, share: float, generator: torch.Generator
) -> TextFeatures:
    """Replace a random `share` of the texts by the empty one (for guidance)."""
    if not share:
        return text
    dropped = torch.rand(len(text), generator=generator) < share
    length = max(text.features.shape[1], empty.features.shape[1])
    device = text.features.device
    text, nothing = text.pad_to(length), empty.to(device).pad_to(length)
    chosen = dropped.to(device)
    return TextFeatures(
        torch.where(chosen[:, None, None], nothing.features.to(text.features.dtype), text.features),
        torch.where(chosen[:, None], nothing.mask, text.mask),
        torch.where(chosen[:, None], nothing.pooled.to(text.pooled.dtype), text.pooled),
    )
