"""Text encoders seen from outside: which one, what it returns, and a cache in front of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from pydantic import Field, model_validator
from torch import Tensor

from diffsound.config import Config

MASK = "[MASK]"  # stands for a detail of a text that is not known (MBTG)
Kind = Literal["minilm", "clip", "bert"]

# 128 is what MiniLM was tuned with; AudioCaps' longest caption takes 69 word pieces.
_LENGTHS: dict[Kind, int] = {"minilm": 128, "clip": 77, "bert": 128}
_POOLS: dict[Kind, tuple[str, ...]] = {
    "minilm": ("mean",),
    "clip": ("end", "projected"),
    "bert": ("cls", "mean"),
}


class TextEncoderConfig(Config):
    """A frozen text encoder (section III-A).

    The paper compares BERT and CLIP and keeps CLIP; MiniLM-L6 is the default because it is small
    and comes with the installation. `official_clip` is the reading of the published code.
    """

    kind: Kind = "minilm"
    name: str | None = Field(
        default=None,
        description="A folder, or a hub id (`owner/model` or `owner/model@revision`); "
        "None takes the kind's usual weights.",
    )
    max_length: int | None = Field(
        default=None, ge=2, le=512, description="Tokens kept of a text, start and end included."
    )
    pad: Literal["longest", "max"] = Field(
        default="longest",
        description="'max' (CLIP only) hands all max_length positions to the decoder, padding "
        "included and unmasked, as the published code does.",
    )
    normalise: bool = Field(default=False, description="Scale each token's vector to length 1.")
    pool: Literal["end", "projected", "cls", "mean"] | None = Field(
        default=None,
        description="The pooled vector: CLIP 'end' (default) or 'projected'; BERT 'cls' (default) "
        "or 'mean'; MiniLM 'mean', scaled to length 1 as sentence-transformers does.",
    )
    mask: Literal["substitute", "official"] = Field(
        default="substitute",
        description="[MASK] for CLIP, which has none: one fixed token ('*'), or the three "
        "ordinary tokens '[', 'mask', ']' that the published code makes of it.",
    )

    @property
    def length(self) -> int:
        """The most tokens a text can have."""
        return self.max_length or _LENGTHS[self.kind]

    @property
    def pooling(self) -> str:
        """The pooling in force."""
        return self.pool or _POOLS[self.kind][0]

    @model_validator(mode="after")
    def _fits_kind(self) -> TextEncoderConfig:
        if self.pooling not in _POOLS[self.kind]:
            known = " or ".join(f"'{pool}'" for pool in _POOLS[self.kind])
            raise ValueError(f"pool '{self.pool}' is not for {self.kind}, which has {known}")
        if self.kind != "clip" and self.pad == "max":
            raise ValueError(f"pad 'max' is only for clip, not {self.kind}")
        if self.kind != "clip" and self.mask == "official":
            raise ValueError(
                f"mask 'official' is only for clip; {self.kind} has its own mask token"
            )
        if self.kind == "clip" and self.length > 77:
            raise ValueError("clip reads at most 77 tokens; lower max_length")
        return self

    @classmethod
    def official_clip(cls, name: str | None = None) -> TextEncoderConfig:
        """CLIP as the published code reads it: 77 unmasked positions, each of length 1."""
        return cls(kind="clip", name=name, pad="max", normalise=True, mask="official")


@dataclass(frozen=True)
class TextFeatures:
    """A batch of encoded texts.

    features: [B, S, D] one vector per text token; zero where the mask is False.
    mask:     [B, S] bool, True at real tokens, False at padding.
    pooled:   [B, D] one vector per text.
    """

    features: Tensor
    mask: Tensor
    pooled: Tensor

    def __len__(self) -> int:
        return self.features.shape[0]

    @property
    def dim(self) -> int:
        return self.features.shape[-1]

    def __getitem__(self, index: slice | Tensor | Sequence[int]) -> TextFeatures:
        """The texts at `index`, as a batch (an index keeps the batch axis)."""
        if not isinstance(index, slice | Tensor):
            index = torch.as_tensor(index, dtype=torch.long)
        return self._each(lambda tensor: tensor[index])

    def repeat(self, times: int) -> TextFeatures:
        """Each text `times` times in a row: [a, b] -> [a, a, b, b]."""
        return self._each(lambda tensor: tensor.repeat_interleave(times, dim=0))

    def to(self, device: torch.device | str) -> TextFeatures:
        return self._each(lambda tensor: tensor.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> TextFeatures:
        return TextFeatures(change(self.features), change(self.mask), change(self.pooled))

    @staticmethod
    def cat(batches: Sequence[TextFeatures]) -> TextFeatures:
        """Join batches, padding the shorter ones in S."""
        length = max(batch.features.shape[1] for batch in batches)
        padded = [batch.pad_to(length) for batch in batches]
        parts = zip(*((one.features, one.mask, one.pooled) for one in padded), strict=True)
        return TextFeatures(*map(torch.cat, parts))

    def pad_to(self, length: int) -> TextFeatures:
        """Pad S with zeros and False up to `length`."""
        missing = length - self.features.shape[1]
        if missing <= 0:
            return self
        return TextFeatures(
            torch.nn.functional.pad(self.features, (0, 0, 0, missing)),
            torch.nn.functional.pad(self.mask, (0, missing)),
            self.pooled,
        )


class TextEncoder(Protocol):
    """A frozen text encoder."""

    @property
    def dim(self) -> int:
        """D, the width of its features."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes whenever the features of some text would change."""
        ...

    def __call__(self, texts: Sequence[str]) -> TextFeatures: ...


class CachedTextEncoder:
    """A text encoder that caches the features of another one, on the CPU.

    It keeps the features of the `max_entries` texts used last.
    """

    def __init__(self, encoder: TextEncoder, max_entries: int = 4096) -> None:
        self.dim, self.fingerprint = encoder.dim, encoder.fingerprint
        self._encoder = encoder
        self._max_entries = max_entries
        self._kept: dict[str, TextFeatures] = {}  # the text used last is the last key

    def __call__(self, texts: Sequence[str]) -> TextFeatures:
        """Features of `texts`, encoding only those not kept."""
        if missing := [text for text in dict.fromkeys(texts) if text not in self._kept]:
            encoded = self._encoder(missing).to("cpu")
            for row, text in enumerate(missing):
                length = int(encoded.mask[row].sum())
                self._kept[text] = TextFeatures(
                    encoded.features[[row], :length],
                    encoded.mask[[row], :length],
                    encoded.pooled[[row]],
                )
        for text in texts:
            self._kept[text] = self._kept.pop(text)
        made = TextFeatures.cat([self._kept[text] for text in texts])
        for text in list(self._kept)[: -self._max_entries]:
            del self._kept[text]
        return made
