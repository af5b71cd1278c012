"""Training a token decoder, AR or Diffsound, on a codec's tokens and encoded texts.

All of its weights learn, or only a low-rank update of them (`LoraConfig`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn.utils import parametrize

from diffsound.audio.mel import MelFrontEnd
from diffsound.codec.codec import Codec
from diffsound.codec.quantizer import ResidualQuantizer
from diffsound.config import Config, parse_config
from diffsound.data.datasets import LabelTokenDataset, TokenDataset
from diffsound.data.loaders import CurriculumSampler, EpochLoader, ItemSampler, Schedule
from diffsound.data.shards import PreparedData
from diffsound.decoder import SamplingSettings, build_decoder
from diffsound.decoder.config import DecoderConfig, DiffsoundConfig
from diffsound.decoder.layers import (
    ColumnEmbedding,
    ColumnLogits,
    FeedForward,
    SelfAttention,
    codes_of,
)
from diffsound.errors import ConfigError, DataError
from diffsound.text.encoders import load_text_encoder
from diffsound.text.features import CachedTextEncoder, TextEncoderConfig, TextFeatures
from diffsound.text.mbtg import MaskedTextConfig
from diffsound.training.assemble import load_codec, load_vocoder
from diffsound.training.config import Share
from diffsound.training.engine import send_to_device, shard
from diffsound.training.run_files import write_mel_pair, write_sound
from diffsound.training.stage import Batch, Moment, Player, Process, Stage, Turn, clips_of, spread
from diffsound.training.tokens import (
    GridDataset,
    TextFacts,
    TokenRun,
    batch_text,
    check_encoder,
    drop_text,
    empty_text,
    fixed_grids,
    grid_loader,
    ladder_for,
    mixed_sampler,
    token_clips,
)


class LoraConfig(Config):
    """Low-rank adaptation (Hu et al. 2021): W + (α/r)·B·A with W frozen, merged at the end.

    rank: r. alpha: how strongly the update counts, as α/r.
    """

    rank: PositiveInt = 8
    alpha: PositiveFloat = 16.0


class LowRankUpdate(nn.Module):
    """W [out, in] -> W + (α/r)·B·A; B starts at zero, so nothing changes at first."""

    def __init__(self, weight: Tensor, config: LoraConfig) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.down = nn.Parameter(torch.randn(config.rank, columns) / columns**0.5)
        self.up = nn.Parameter(torch.zeros(rows, config.rank))
        self.scale = config.alpha / config.rank

    def forward(self, weight: Tensor) -> Tensor:
        return torch.addmm(weight, self.up, self.down, alpha=self.scale)


def add_lora(module: nn.Module, within: nn.Module, config: LoraConfig) -> None:
    """Freeze `module` and give every dense layer of its part `within` a low-rank update."""
    module.requires_grad_(False)
    for layer in within.modules():
        if isinstance(layer, nn.Linear):
            parametrize.register_parametrization(
                layer, "weight", LowRankUpdate(layer.weight, config).to(layer.weight.device)
            )


def merged_state(module: nn.Module) -> dict[str, Tensor]:
    """The state dict of the ordinary module: updates added to the weights they belong to."""
    state = module.state_dict()
    for name, layer in module.named_modules():
        if parametrize.is_parametrized(layer, "weight"):
            prefix = f"{name}.parametrizations.weight."
            state = {key: value for key, value in state.items() if not key.startswith(prefix)}
            state[f"{name}.weight"] = layer.weight.detach()
    return state


class CurriculumConfig(Config):
    """Algorithm 3: n epochs on clips with one event, then 2n on clips with several."""

    n: PositiveInt
    schedule: Schedule = "paper"


class SampleConfig(Config):
    """Samples generated at a validation.

    clips: number of held-out captions. guidance_scale, num_inference_steps: as in generation.
    """

    clips: NonNegativeInt = 4
    guidance_scale: PositiveFloat = 2.0
    num_inference_steps: PositiveInt | None = 25


class DecoderRun(TokenRun):
    """One run of the stage.

    decoder: rows, codebook_size and text_dim are taken from the data if left out.
    codes: "codec" initialises the tokens' vectors with the codec's codes, so that the decoder knows
        which of them sound alike (residual codes, of decoder.code_width numbers or more).
    vocoder: a vocoder's run, a bundle or "griffin_lim", to make samples audible.
    lora: train a low-rank update of the dense layers only, for fine-tuning on few clips.
    labels: train on texts made from labels (MBTG) instead of captions, for pre-training.
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
        """Fill in everything the data determines; make tokens and text that are missing."""
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
        """The encoder of texts written on the fly; the data needs no text features."""
        encoder = self.text_encoder or TextEncoderConfig()
        loaded = load_text_encoder(encoder)
        check_encoder(loaded.fingerprint, self.text)
        return TextFacts(loaded.fingerprint, loaded.dim, encoder)


class LossModule(nn.Module):
    """A decoder whose forward is its loss, for wrappers that only know `forward`."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(
        self, tokens: Tensor, text: TextFeatures, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Named scalars; "loss" is the one to differentiate."""
        made = self.decoder.loss(tokens, text, generator)  # type: ignore[operator]
        return {"loss": made.loss, **made.logs}


def start_from_codes(transformer: nn.Module, codec: Codec | None) -> None:
    """Initialise a column decoder with the codec's residual codes."""
    embedding, logits = transformer.codes, transformer.logits
    if not (
        codec is not None
        and isinstance(codec.quantizer, ResidualQuantizer)
        and isinstance(embedding, ColumnEmbedding)
        and isinstance(logits, ColumnLogits)
        and embedding.codes.embedding_dim <= codec.config.quantizer.code_dim
    ):
        raise ConfigError(
            "codes 'codec' needs a codec with residual codes, and a decoder with position 'column' "
            "and code_width no more than the codec's quantizer.code_dim"
        )
    books = torch.cat([book.codes for book in codec.quantizer.books()])  # [F', K, d]
    sounds = codes_of(books, embedding.codes.embedding_dim)
    embedding.start_from(sounds)
    logits.start_from(sounds)


class DecoderStage(Stage):
    """Tokens and text → the decoder's own loss."""

    kind = "decoder"
    metric = "loss"

    def __init__(self, config: DecoderRun, data: PreparedData, process: Process) -> None:
        """config: completed, see DecoderRun.completed."""
        super().__init__()
        self.config = config
        self.info = data.tokens(config.tokens).info
        self.decoder = build_decoder(config.decoder)
        self.decoder.transformer.gradient_checkpointing = config.gradient_checkpointing
        self.players = {"decoder": Player.of(LossModule(self.decoder), config.train)}
        assert config.text_encoder is not None
        self.encoder = CachedTextEncoder(load_text_encoder(config.text_encoder))
        check_encoder(self.encoder.fingerprint, config.text)
        self.empty = empty_text(self.encoder)
        self.codec = load_codec(config.codec)[0] if config.codec else None
        self.vocoder = load_vocoder(config.vocoder, self.info.mel)[0] if config.vocoder else None
        self.ladder = ladder_for(config, self.codec, MelFrontEnd(self.info.mel))
        self.loader = self._loader(data, process)
        self.held_out, self.held_out_clips = fixed_grids(
            config, self._clips(data, config.data.valid_split, False), self.ladder
        )

    @property
    def product(self) -> nn.Module:
        return self.decoder

    def _clips(self, data: PreparedData, split: str, augment: bool) -> TokenDataset:
        config = self.config
        if config.labels is None:
            return token_clips(config, data, split, augment)
        indices = clips_of(data, config.data, split)
        return LabelTokenDataset(data, indices, config.labels, codec=config.tokens, augment=augment)

    def _loader(self, data: PreparedData, process: Process) -> EpochLoader:
        config = self.config
        folders = [data, *(PreparedData.open(path) for path in config.folders())]
        parts = [self._clips(folder, config.data.train_split, True) for folder in folders]
        dataset = GridDataset(parts, self.ladder)
        sampler: ItemSampler
        if config.curriculum is not None:
            counts = [dataset.label_count(clip) for clip in range(len(dataset.clips))]
            plan, seed = config.curriculum, config.train.seed
            sampler = CurriculumSampler(counts, plan.n, schedule=plan.schedule, seed=seed)
        else:
            sampler = mixed_sampler(dataset, config.data, config.train.seed)
        return grid_loader(config, dataset, sampler, process)

    def attach(self, prepared: Mapping[str, nn.Module], device: torch.device) -> None:
        super().attach(prepared, device)
        self.empty = self.empty.to(device)

    def ready(self) -> None:
        if self.config.codes == "codec" and self.config.init is None:
            start_from_codes(self.decoder.transformer, self.codec)
        if self.config.lora is not None:
            add_lora(self.decoder, self.decoder.transformer.blocks, self.config.lora)

    def export_state(self, module: nn.Module) -> dict[str, Tensor]:
        return merged_state(module)

    def shard(self, module: nn.Module, device: str) -> None:
        # Each unit is half of a block's weights. Parts that are not entered by forward (the text's
        # keys and values, the timestep's scales) stay with the whole module.
        decoder = module.decoder if isinstance(module, LossModule) else module
        kinds = (SelfAttention, FeedForward)
        units = [part for part in decoder.modules() if isinstance(part, kinds)]
        shard(decoder, units, device, methods=["loss"])

    def compile(self) -> None:
        # Only the blocks: they are nearly all of the work, identical, and draw no random numbers.
        for block in self.decoder.transformer.blocks:
            block.compile()

    def turns(self, batch: Batch, moment: Moment) -> Iterator[Turn]:
        text = batch_text(batch, self.encoder)
        text = drop_text(text, self.empty, self.config.text_dropout, moment.generator)
        logs = self.prepared["decoder"](batch["tokens"], text, moment.generator)
        yield Turn("decoder", logs["loss"], logs)

    def validate(self, module: nn.Module) -> dict[str, float]:
        """loss: on held-out clips with fixed times and noise, in nats per token (or its bound).

        text_gain: by how much the loss rises without the text, i.e. how much the text is used.
        """
        sums = torch.zeros(2, dtype=torch.float64)
        clips = 0
        for number, batch in enumerate(self._fixed_batches()):
            tokens, text = batch["tokens"], batch_text(batch, self.encoder)
            nothing = self.empty[[0] * len(text)]
            for index in range(self.config.valid_passes):
                for place, condition in enumerate((text, nothing)):
                    generator = torch.Generator().manual_seed(1000 * number + index)
                    made = module.loss(tokens, condition, generator)  # type: ignore[operator]
                    sums[place] += made.per_item.double().sum().cpu()
            clips += len(tokens)
        loss, without = (sums / (clips * self.config.valid_passes)).tolist()
        return {"loss": loss, "text_gain": without - loss}

    def sample(self, module: nn.Module, folder: Path) -> None:
        """Write held-out clips through the codec, and what the decoder makes of their captions."""
        wanted = self.config.samples
        if self.codec is None or not wanted.clips:
            return
        chosen = spread(range(self.held_out_clips), wanted.clips)
        first = 0
        for batch in self._fixed_batches():
            text = batch_text(batch, self.encoder)
            for index in (clip - first for clip in chosen if first <= clip < first + len(text)):
                tokens = batch["tokens"][index : index + 1]
                made = self._generate(module, text[[index]], tokens.shape[-1], seed=first + index)
                self._show(folder / str(batch["id"][index]), tokens, made)
            first += len(text)

    def _generate(self, module: nn.Module, text: TextFeatures, width: int, seed: int) -> Tensor:
        wanted = self.config.samples
        steps = wanted.num_inference_steps
        if isinstance(self.config.decoder, DiffsoundConfig):
            steps = min(steps or self.config.decoder.timesteps, self.config.decoder.timesteps)
        else:
            steps = None
        settings = SamplingSettings(num_inference_steps=steps, guidance_scale=wanted.guidance_scale)
        made: Tensor = module.generate(  # type: ignore[operator]
            text,
            (self.info.rows, width),
            [torch.Generator().manual_seed(seed)],
            settings,
            negative=self.empty,
        )
        return made

    def _show(self, path: Path, real: Tensor, made: Tensor) -> None:
        assert self.codec is not None
        mels = {"real": self.codec.decode(real)[0], "made": self.codec.decode(made)[0]}
        write_mel_pair(Path(f"{path}.png"), mels["real"], mels["made"])
        if self.vocoder is not None:
            for name, mel in mels.items():
                wave = self.vocoder(mel[None])[0]
                write_sound(Path(f"{path}-{name}.wav"), wave, self.info.mel.sample_rate)

    def export_config(self) -> dict[str, Any]:
        assert self.config.text_encoder is not None
        return {
            "decoder": self.config.decoder.model_dump(mode="json"),
            "codec_fingerprint": self.config.tokens,
            "text_fingerprint": self.config.text,
            "text_encoder": self.config.text_encoder.model_dump(mode="json"),
            "mel": self.info.mel.model_dump(mode="json"),
            "time_stride": self.info.time_stride,
        }

    def _fixed_batches(self) -> Iterator[Batch]:
        for batch in self.held_out.batches(0):
            yield send_to_device(batch, self.device)
