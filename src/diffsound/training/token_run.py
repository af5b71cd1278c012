"""What runs have in common that learn from tokens and encoded texts."""

from __future__ import annotations

from typing import Annotated, NamedTuple, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, model_validator

from diffsound.config import Config
from diffsound.data.index import TokensIndex
from diffsound.data.shards import PreparedData
from diffsound.data.tokenize import TokenizeSettings
from diffsound.text.config import TextEncoderConfig
from diffsound.training.config import DataConfig, RunConfig
from diffsound.training.derive import text_of, tokens_of
from diffsound.training.grids import GridConfig


class MixedFolder(Config):
    """Another prepared folder, and the share of an epoch's clips that come from it."""

    path: str
    share: Annotated[float, Field(gt=0, lt=1)]


class TokenDataConfig(DataConfig):
    """mix: further folders (soundscapes, say) tokenised by the same codec.

    favour: how much more (or less) often the clips of some data sets are drawn, by their name.
    """

    mix: tuple[MixedFolder, ...] = ()
    favour: dict[str, PositiveFloat] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _leaves_room(self) -> Self:
        if sum(folder.share for folder in self.mix) >= 1:
            raise ValueError("the shares of mix must sum to less than 1; the rest is --data's")
        return self


class TextFacts(NamedTuple):
    """A text encoder's fingerprint, width and config."""

    fingerprint: str
    dim: int
    encoder: TextEncoderConfig


class TokenRun(RunConfig):
    """A run on a codec's tokens and texts.

    codec, text_encoder: a codec's run or bundle, and an encoder; tokens and text features that
        the data lacks are made with them first. Left out, the data must have them.
    tokens, text: fingerprints of the codec and encoder; filled in when the run starts, so that it
        can never go on with another codec's tokens or another encoder's text.
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
        """The tokens of the data, and as many of the folders mixed in; made where they lack."""
        tokens = tokens_of(data, self.codec, self.tokens, self.tokenize)
        for path in self.folders():
            tokens_of(PreparedData.open(path), self.codec, tokens.fingerprint, self.tokenize)
        return tokens

    def find_text(self, data: PreparedData) -> TextFacts:
        """The encoder of the data's captions; they are encoded where they are not yet."""
        index = text_of(data, self.text_encoder, self.text)
        for path in self.folders():
            text_of(PreparedData.open(path), self.text_encoder, index.fingerprint)
        encoder = self.text_encoder or TextEncoderConfig.model_validate(index.encoder)
        return TextFacts(index.fingerprint, index.dim, encoder)
