"""Published checkpoints into a bundle: the decoder, the VQ-VAE and the MelGAN, with their numbers.

Files are read as tensors only; no code in them runs (`checkpoint_files.py`). Sizes come from the
shapes; what shapes cannot tell (heads, rows, truncation) are options with the published values as
defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from diffsound.audio.mel import MelConfig
from diffsound.codec.codec import Codec
from diffsound.codec.importing import codec_from_published
from diffsound.decoder import build_decoder
from diffsound.decoder.ar import ARDecoder
from diffsound.decoder.config import ARConfig, DiffsoundConfig
from diffsound.decoder.diffsound import Diffsound
from diffsound.decoder.importing import ar_from_published, diffsound_from_published
from diffsound.generation.settings import GenerationDefaults
from diffsound.model.bundle import Bundle
from diffsound.model.checkpoint_files import read_checkpoint
from diffsound.model.config import BundleConfig, CodecPart, DecoderPart, VocoderPart
from diffsound.text.config import TextEncoderConfig
from diffsound.vocoder import Vocoder, build_vocoder
from diffsound.vocoder.config import GriffinLimConfig, VocoderConfig
from diffsound.vocoder.importing import melgan_from_published
from diffsound.weights import load_into

PUBLISHED_CLIP = "openai/clip-vit-base-patch32"


def import_published(
    decoder: str | Path,
    *,
    codec: str | Path | None = None,
    vocoder: str | Path | None = None,
    text_encoder: str | Path | None = None,
    name: str = "published",
    heads: int = 16,
    rows: int = 5,
    ema: bool | None = None,
    truncation: float = 0.85,
) -> Bundle:
    """A bundle from published files.

    decoder: a Diffsound or an autoregressive checkpoint (told apart by their keys).
    codec: the VQ-VAE's own file; None takes the VQ-VAE inside the decoder's file.
    vocoder: the MelGAN's file; None takes Griffin-Lim.
    text_encoder: a CLIP folder or hub id; None means the published ViT-B/32.
    ema: Diffsound's averaged weights (True), its raw ones (False), or the averaged ones if the
        file has them (None).
    """
    checkpoint = read_checkpoint(decoder)
    mel = MelConfig()
    loaded_decoder, defaults = _decoder(checkpoint, heads, rows, ema, truncation)
    of_codec = checkpoint if codec is None else read_checkpoint(codec)
    codec_config, codec_state = codec_from_published(_weights(of_codec), mel.n_mels)
    loaded_codec = Codec(codec_config)
    load_into(loaded_codec, codec_state, str(codec or decoder))
    vocoder_config, loaded_vocoder = _vocoder(vocoder, mel)
    columns = loaded_decoder.config.columns
    seconds = columns * codec_config.time_stride * mel.hop_length / mel.sample_rate
    config = BundleConfig(
        name=name,
        text_encoder=_text_encoder(loaded_decoder.config, text_encoder),
        codec=CodecPart(model=codec_config, mel=mel),
        decoder=DecoderPart(model=loaded_decoder.config),
        vocoder=VocoderPart(model=vocoder_config, mel=mel),
        defaults=defaults.model_copy(update={"duration": min(max(seconds, 0.5), 30.0)}),
    )
    card = (
        f"# {name}\n\nImported from published checkpoints: {Path(decoder).name}"
        + "".join(f", {Path(path).name}" for path in (codec, vocoder) if path)
        + ".\nTheir authors' terms apply to these weights.\n"
    )
    return Bundle(
        config=config,
        codec=loaded_codec,
        decoder=loaded_decoder,
        vocoder=loaded_vocoder,
        card=card,
    )


def _weights(checkpoint: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tensors of a training checkpoint, or of a plain state dict."""
    inner = (checkpoint.get(key) for key in ("state_dict", "model"))
    found = next((value for value in inner if isinstance(value, Mapping)), checkpoint)
    return {key: value for key, value in found.items() if isinstance(value, torch.Tensor)}


def _decoder(
    checkpoint: Mapping[str, Any], heads: int, rows: int, ema: bool | None, truncation: float
) -> tuple[Diffsound | ARDecoder, GenerationDefaults]:
    autoregressive = any(key.endswith("tok_emb.weight") for key in _weights(checkpoint))
    config: DiffsoundConfig | ARConfig
    if autoregressive:
        config, state, settings = ar_from_published(checkpoint, heads=heads, rows=rows)
    else:
        config, state, settings = diffsound_from_published(
            checkpoint, heads=heads, ema=ema, truncation=truncation
        )
    model = build_decoder(config)
    load_into(model, state, "the decoder's checkpoint")
    names = GenerationDefaults.model_fields.keys() & vars(settings).keys()
    return model, GenerationDefaults(**{name: getattr(settings, name) for name in names})


def _vocoder(path: str | Path | None, mel: MelConfig) -> tuple[VocoderConfig, Vocoder]:
    if path is None:
        config: VocoderConfig = GriffinLimConfig()
        return config, build_vocoder(config, mel)
    config, state = melgan_from_published(_weights(read_checkpoint(path)), mel)
    model = build_vocoder(config, mel)
    load_into(model, state, str(path))
    return config, model


def _text_encoder(
    decoder: DiffsoundConfig | ARConfig, source: str | Path | None
) -> TextEncoderConfig:
    name = str(source or PUBLISHED_CLIP)
    if isinstance(decoder, DiffsoundConfig):
        return TextEncoderConfig.official_clip(name)
    return TextEncoderConfig(kind="clip", name=name, pool="projected", mask="official")
