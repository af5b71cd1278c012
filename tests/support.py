"""Builders that several tests share."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from diffsound.audio.mel import MelConfig
from diffsound.codec.codec import Codec, PatchDecoder
from diffsound.codec.config import CodecConfig
from diffsound.decoder import build_decoder
from diffsound.decoder.config import (
    ARConfig,
    DecoderConfig,
    DiffsoundConfig,
    LossConfig,
    ScheduleConfig,
)
from diffsound.generation.settings import GenerationDefaults
from diffsound.model.bundle import Bundle, BundleConfig, CodecPart, DecoderPart, VocoderPart
from diffsound.text.features import TextEncoderConfig
from diffsound.vocoder import ISTFTConfig, build_vocoder

TEXT_DIM = 384  # MiniLM's
KNOWN_CAPTIONS = ("a dog barks", "rain falling on a roof", "a door slams shut")


def make_bundle(decoder: DecoderConfig, codec: CodecConfig | None = None) -> Bundle:
    """A bundle with random, seeded weights."""
    codec = codec or CodecConfig.tiny()
    mel = MelConfig.full_band()
    vocoder = ISTFTConfig(width=16, layers=1)
    config = BundleConfig(
        name="tiny",
        text_encoder=TextEncoderConfig(kind="minilm"),
        codec=CodecPart(model=codec, mel=mel),
        decoder=DecoderPart(model=decoder),
        vocoder=VocoderPart(model=vocoder, mel=mel),
        defaults=GenerationDefaults(
            duration=1.0,
            num_inference_steps=None if isinstance(decoder, ARConfig) else 3,
            guidance_scale=2.0,
        ),
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Bundle(
            config=config,
            codec=_audible(Codec(codec)),
            decoder=build_decoder(decoder),
            vocoder=build_vocoder(vocoder, mel),
            card="# tiny\n\nRandom weights, for tests.\n",
        )


def _audible(codec: Codec) -> Codec:
    """With random weights a linear codec's mels are nearly flat and quiet: make them stand out."""
    if isinstance(codec.decoder, PatchDecoder):
        with torch.no_grad():
            codec.decoder.patches.weight.mul_(3)
            codec.decoder.patches.bias.add_(0.3)
    return codec


def tiny_diffsound(codec: CodecConfig | None = None) -> DiffsoundConfig:
    codec = codec or CodecConfig.tiny()
    return DiffsoundConfig.tiny(codec.rows, codec.codebook_size, TEXT_DIM)


def bundle_with_rows_in_turn() -> Bundle:
    """A tiny bundle that draws the coarse rows of a residual codec before the fine ones."""
    codec = CodecConfig.tiny()
    quantizer = codec.quantizer.model_copy(update={"layout": "residual", "code_dim": 8})
    codec = codec.model_copy(update={"quantizer": quantizer})
    shares = tuple(range(codec.rows + 1, 1, -1))  # 5, 4, 3, 2
    decoder = tiny_diffsound(codec).model_copy(
        update={
            "schedule": ScheduleConfig(transition="mask", row_shares=shares),
            "loss": LossConfig(variant="simplified"),
        }
    )
    return make_bundle(decoder, codec)


def with_defaults(bundle: Bundle, **changes: Any) -> Bundle:
    """The bundle with other defaults of generation; its networks are shared."""
    defaults = bundle.config.defaults.model_copy(update=changes)
    config = bundle.config.model_copy(update={"defaults": defaults})
    return dataclasses.replace(bundle, config=config)
