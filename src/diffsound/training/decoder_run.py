"""What a decoder's run is made of: configs/…/decoder.yaml, configs/…/ar.yaml."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from diffsound.config import Config, parse_config
from diffsound.data.curriculum import Schedule
from diffsound.data.shards import PreparedData
from diffsound.decoder.config import DecoderConfig
from diffsound.errors import DataError
from diffsound.text.config import TextEncoderConfig
from diffsound.text.encoders import load_text_encoder
from diffsound.training.config import Share
from diffsound.training.derive import check_encoder
from diffsound.training.lora import LoraConfig
from diffsound.training.texts import MaskedTextConfig
from diffsound.training.token_run import TextFacts, TokenRun


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


class DecoderRun(TokenRun):
    """One run of the stage.

    decoder: rows, codebook_size and text_dim are taken from the data where they are left out.
    codes: "codec" begins with the codec's own codes as the tokens' vectors, so that the decoder
        knows which of them sound alike (residual codes, decoder.code_width their length).
    vocoder: a vocoder's run, a bundle or "griffin_lim", to hear samples with.
    lora: learn a low-rank update of the dense layers only, for fine-tuning on few clips.
    labels: learn from texts made of labels (MBTG) instead of captions: the pre-training.
    """

    stage: Literal["decoder"]
    decoder: DecoderConfig
    text_dropout: Share = 0.1
    labels: MaskedTextConfig | None = None
    curriculum: CurriculumConfig | None = None
    lora: LoraConfig | None = None
    codes: Literal["drawn", "codec"] = "drawn"
    gradient_checkpointing: bool = False
    valid_passes: PositiveInt = 2
    vocoder: str | None = None
    samples: SampleConfig = SampleConfig()

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        if self.lora is not None and self.train.shard:
            raise ValueError("a low-rank update is small: leave out train.shard")
        if self.curriculum is not None and (self.data.mix or self.data.balance or self.data.favour):
            raise ValueError(
                "a curriculum has its own order: leave out data.mix, data.balance and data.favour"
            )
        return self

    def completed(self, data: PreparedData) -> Self:
        """With everything the data decides filled in; makes what the data lacks."""
        text = self._written_text() if self.labels is not None else self.find_text(data)
        tokens = self.find_tokens(data)
        found = {"rows": tokens.rows, "codebook_size": tokens.codebook_size, "text_dim": text.dim}
        given = self.decoder.model_dump(include=self.decoder.model_fields_set)
        for name, value in found.items():
            if given.get(name, value) != value:
                raise DataError(
                    f"decoder.{name} is {given[name]}, the data in {data.folder} has {value}; "
                    f"leave it out to take the data's"
                )
        decoder = parse_config(type(self.decoder), given | found, "decoder")
        filled = {
            "tokens": tokens.fingerprint,
            "text": text.fingerprint,
            "text_encoder": text.encoder,
        }
        return self.model_copy(update={**filled, "decoder": decoder})

    def _written_text(self) -> TextFacts:
        """The encoder of texts that are written on the fly, for which the data needs none."""
        encoder = self.text_encoder or TextEncoderConfig()
        loaded = load_text_encoder(encoder)
        check_encoder(loaded.fingerprint, self.text)
        return TextFacts(loaded.fingerprint, loaded.dim, encoder)
