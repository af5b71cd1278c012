"""The text side of decoder training: stored captions, or labels written out as masked texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from diffsound.config import Config
from diffsound.data.datasets import TokenData, TokenDataset
from diffsound.data.record import Record
from diffsound.data.shards import PreparedData
from diffsound.errors import DataError
from diffsound.text.features import TextEncoder, TextFeatures
from diffsound.text.mbtg import Order, mask_based_text


class MaskedTextConfig(Config):
    """Texts made of labels (MBTG, section IV-C). masks: the values m may take."""

    masks: tuple[int, ...] = (1, 2)
    order: Order = "given"


class _OneToken:
    """Stands in for stored captions where the text is written on the fly."""

    def of(self, i: int) -> TextFeatures:
        nothing = torch.zeros(1, 1)
        return TextFeatures(nothing[None], torch.ones(1, 1, dtype=torch.bool), nothing)


class _TokensOnly:
    """A prepared folder seen without its text features, which may not exist."""

    def __init__(self, data: PreparedData) -> None:
        self._data = data

    @property
    def records(self) -> Sequence[Record]:
        return self._data.records

    def wave(self, i: int) -> np.ndarray:
        return self._data.wave(i)

    def tokens(self, fingerprint: str | None = None) -> TokenData:
        return self._data.tokens(fingerprint)

    def text(self, fingerprint: str | None = None) -> _OneToken:
        return _OneToken()


class LabelTokenDataset(TokenDataset):
    """Tokens with a text made of the clip's labels, another one every time:

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
            raise DataError(f"{data.folder} has no labels to make texts of; leave out 'labels'")
        super().__init__(_TokensOnly(data), labelled, codec=codec, augment=augment)
        self.how = how

    def item(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        """One grid of the clip at `index` and a masked text of its labels."""
        drawn = super().item(index, rng)
        labels = self.records[self.indices[index]].labels
        text = mask_based_text(labels, rng, masks=self.how.masks, order=self.how.order)
        return {"tokens": drawn["tokens"], "text": text, "id": drawn["id"]}


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
    """`share` of the texts, drawn at random, become the empty one (for guidance)."""
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
