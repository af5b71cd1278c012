"""What the stages that learn from tokens and texts share: settings, loaders, texts.

Tokens and text features are found in the data, or made before training.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, model_validator

from diffsound.audio.mel import MelFrontEnd
from diffsound.codec.codec import Codec
from diffsound.config import Config
from diffsound.data.datasets import TokenDataset
from diffsound.data.derived import TokenizeSettings, encode_text, tokenize
from diffsound.data.engines import available_cores, make_engine
from diffsound.data.loaders import EpochLoader, FixedSampler, ItemSampler
from diffsound.data.shards import PreparedData, TextIndex, TokensIndex, read_index
from diffsound.errors import DataError
from diffsound.text.config import TextEncoderConfig
from diffsound.text.encoders import load_text_encoder
from diffsound.text.features import TextEncoder, TextFeatures
from diffsound.text.mbtg import Order, mask_based_text
from diffsound.training.config import DataConfig, RunConfig
from diffsound.training.frozen import load_codec
from diffsound.training.grids import GridConfig, GridDataset, Ladder, RungSampler, mixed_sampler
from diffsound.training.waves import Process, clips_of, spread


class MixedFolder(Config):
    """Another prepared folder, and the share of an epoch's clips that come from it."""

    path: str
    share: Annotated[float, Field(gt=0, lt=1)]


class TokenDataConfig(DataConfig):
    """Which clips are seen, from one or more folders.

    mix: further prepared folders, such as soundscapes, tokenised with the same codec.
    favour: factor by which the clips of a data set are drawn more or less often, by its name.
    """

    mix: tuple[MixedFolder, ...] = ()
    favour: dict[str, PositiveFloat] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _leaves_room(self) -> Self:
        if sum(folder.share for folder in self.mix) >= 1:
            raise ValueError("the shares of mix must sum to less than 1; the rest is --data")
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


def token_clips(config: TokenRun, data: PreparedData, split: str, augment: bool) -> TokenDataset:
    """The split's clips as tokens with one of their captions."""
    indices = clips_of(data, config.data, split)
    return TokenDataset(data, indices, codec=config.tokens, encoder=config.text, augment=augment)


def class_sampler(config: TokenRun, dataset: GridDataset) -> ItemSampler:
    """Clips of all folders in their shares, balanced as the data group says."""
    shares = [folder.share for folder in config.data.mix]
    return mixed_sampler(
        dataset, shares, config.data.balance, config.train.seed, config.data.favour
    )


def grid_loader(
    config: TokenRun, dataset: GridDataset, sampler: ItemSampler, process: Process
) -> EpochLoader:
    """Batches of grids of one width each."""
    return EpochLoader(
        dataset,
        RungSampler(sampler, dataset, config.train.seed),
        config.train.batch_size,
        seed=config.train.seed,
        rank=process.rank,
        world=process.world,
        workers=config.data.workers,
        bucket_by=dataset.width,
    )


def fixed_grids(config: TokenRun, clips: TokenDataset, ladder: Ladder) -> tuple[EpochLoader, int]:
    """Grids of some held-out clips, the same at every call, and the number of clips."""
    dataset = GridDataset([clips], ladder, augment=False)
    chosen = spread(range(len(dataset.clips)), config.valid_clips)
    items = [clip * len(dataset.widths) + dataset.natural[clip] for clip in chosen]
    loader = EpochLoader(
        dataset,
        FixedSampler(items),
        config.train.batch_size,
        bucket_by=dataset.width,
        drop_last=False,
    )
    return loader, len(chosen)


def ladder_for(config: TokenRun, codec: Codec | None, front_end: MelFrontEnd) -> Ladder:
    """The run's ladder of widths, with the codec's tokens of silence if it pads with them."""
    silence = None
    if config.grids.fill == "silence" and codec is not None:
        silence = silent_column(codec, front_end)
    return Ladder(config.grids, silence)


@torch.no_grad()
def silent_column(codec: Codec, front_end: MelFrontEnd) -> np.ndarray:
    """The codec's tokens [F'] of silence, away from any sound."""
    columns = 33
    samples = columns * codec.time_stride * front_end.config.hop_length
    mel = front_end(torch.zeros(1, samples))[..., : columns * codec.time_stride]
    return codec.encode(mel)[0, :, columns // 2].numpy()


class MaskedTextConfig(Config):
    """Texts made from labels (MBTG, section IV-C).

    masks: the values m may take. alternatives: keep all wordings that AudioSet lists in a label
        ("Vehicle horn, car horn, honking"), not the usual one alone.
    """

    masks: tuple[int, ...] = (1, 2)
    order: Order = "given"
    alternatives: bool = False


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
        text = mask_based_text(labels, rng, **self.how.model_dump())
        return {**drawn, "text": text}


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
