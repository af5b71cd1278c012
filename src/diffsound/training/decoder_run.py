"""What a decoder's run is made of: configs/…/decoder.yaml, configs/…/ar.yaml."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from diffsound.config import Config, parse_config
from diffsound.data.curriculum import Schedule
from diffsound.data.shards import PreparedData
from diffsound.data.tokenize import TokenizeSettings
from diffsound.decoder.config import DecoderConfig
from diffsound.errors import DataError
from diffsound.text.config import TextEncoderConfig
from diffsound.text.encoders import load_text_encoder
from diffsound.training.config import DataConfig, RunConfig, Share
from diffsound.training.derive import check_encoder, text_of, tokens_of
from diffsound.training.grids import GridConfig
from diffsound.training.lora import LoraConfig
from diffsound.training.texts import MaskedTextConfig


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


class CurriculumConfig(Config):
    """Algorithm 3: n epochs on single-event clips, 2n on those with several."""

    n: PositiveInt
    schedule: Schedule = "paper"


class SampleConfig(Config):
    """What is generated at a validation, for eyes and ears.

    clips: how many held-out captions. guidance_scale, num_inference_steps: as in generation.
    """

    clips: NonNegativeInt = 4
    guidance_scale: PositiveFloat = 2.0
    num_inference_steps: PositiveInt | None = 25


class DecoderRun(RunConfig):
    """One run of the stage.

    decoder: rows, codebook_size and text_dim are taken from the data where they are left out.
    codec, text_encoder: a codec's run or bundle, and an encoder; tokens and text features that
        the data lacks are made with them first. Left out, the data must have them.
    tokens, text: fingerprints of the codec and encoder; filled in when the run starts, so that it
        can never go on with another codec's tokens or another encoder's text.
    codes: "codec" begins with the codec's own codes as the tokens' vectors, so that the decoder
        knows which of them sound alike (residual codes, decoder.code_width their length).
    vocoder: a vocoder's run, a bundle or "griffin_lim", to hear samples with.
    lora: learn a low-rank update of the dense layers only, for fine-tuning on few clips.
    labels: learn from texts made of labels (MBTG) instead of captions: the pre-training.
    """

    stage: Literal["decoder"]
    decoder: DecoderConfig
    data: TokenDataConfig = TokenDataConfig()
    codec: str | None = None
    tokenize: TokenizeSettings = TokenizeSettings()
    tokens: str | None = None
    text_encoder: TextEncoderConfig | None = None
    text: str | None = None
    text_dropout: Share = 0.1
    grids: GridConfig = GridConfig()
    labels: MaskedTextConfig | None = None
    curriculum: CurriculumConfig | None = None
    lora: LoraConfig | None = None
    codes: Literal["drawn", "codec"] = "drawn"
    gradient_checkpointing: bool = False
    valid_clips: NonNegativeInt = 256
    valid_passes: PositiveInt = 2
    vocoder: str | None = None
    samples: SampleConfig = SampleConfig()

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        if self.grids.fill == "silence" and self.codec is None:
            raise ValueError("grids.fill 'silence' needs the codec's run or bundle: --set codec=…")
        if self.lora is not None and self.train.shard:
            raise ValueError("a low-rank update is small: leave out train.shard")
        if self.curriculum is not None and (self.data.mix or self.data.balance or self.data.favour):
            raise ValueError(
                "a curriculum has its own order: leave out data.mix, data.balance and data.favour"
            )
        return self

    def folders(self) -> tuple[str, ...]:
        return tuple(folder.path for folder in self.data.mix)

    def completed(self, data: PreparedData) -> Self:
        """With everything the data decides filled in; makes what the data lacks."""
        encoder = self.text_encoder
        if self.labels is not None:
            encoder = encoder or TextEncoderConfig()
            loaded = load_text_encoder(encoder)
            check_encoder(loaded.fingerprint, self.text)
            text, dim = loaded.fingerprint, loaded.dim
        else:
            index = text_of(data, encoder, self.text)
            text, dim = index.fingerprint, index.dim
            encoder = encoder or TextEncoderConfig.model_validate(index.encoder)
        tokens = tokens_of(data, self.codec, self.tokens, self.tokenize)
        for path in self.folders():
            more = PreparedData.open(path)
            tokens_of(more, self.codec, tokens.fingerprint, self.tokenize)
            if self.labels is None:
                text_of(more, self.text_encoder, text)
        found = {"rows": tokens.rows, "codebook_size": tokens.codebook_size, "text_dim": dim}
        given = self.decoder.model_dump(include=self.decoder.model_fields_set)
        for name, value in found.items():
            if given.get(name, value) != value:
                raise DataError(
                    f"decoder.{name} is {given[name]}, the data in {data.folder} has {value}; "
                    f"leave it out to take the data's"
                )
        decoder = parse_config(type(self.decoder), given | found, "decoder")
        filled = {"tokens": tokens.fingerprint, "text": text, "text_encoder": encoder}
        return self.model_copy(update={**filled, "decoder": decoder})
