"""A bundle of the bundled model's size with random weights, which costs as much to run."""

from __future__ import annotations

import torch

from diffsound.audio.mel import MelConfig
from diffsound.codec.codec import Codec
from diffsound.codec.config import CodecConfig
from diffsound.decoder import build_decoder
from diffsound.decoder.config import DiffsoundConfig
from diffsound.generation.settings import GenerationDefaults
from diffsound.model.bundle import Bundle
from diffsound.model.config import BundleConfig, CodecPart, DecoderPart, VocoderPart
from diffsound.text.config import TextEncoderConfig
from diffsound.vocoder import build_vocoder
from diffsound.vocoder.config import ISTFTConfig


def small_bundle() -> Bundle:
    """The `small` preset of every stage."""
    codec, mel, vocoder = CodecConfig.small(), MelConfig.full_band(), ISTFTConfig()
    decoder = DiffsoundConfig.small(codec.rows, codec.codebook_size)
    torch.manual_seed(0)
    return Bundle(
        config=BundleConfig(
            name="small, random",
            text_encoder=TextEncoderConfig(kind="minilm"),
            codec=CodecPart(model=codec, mel=mel),
            decoder=DecoderPart(model=decoder),
            vocoder=VocoderPart(model=vocoder, mel=mel),
            defaults=GenerationDefaults(num_inference_steps=25, guidance_scale=3.0),
        ),
        codec=Codec(codec),
        decoder=build_decoder(decoder),
        vocoder=build_vocoder(vocoder, mel),
    )
