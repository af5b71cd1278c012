"""Which text encoder, from where, and how its output is read."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from diffsound.config import Config

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
