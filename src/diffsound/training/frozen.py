"""Finished stages that another run builds on: out of a run's export or a bundle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from diffsound import bundle
from diffsound.audio.mel import MelConfig
from diffsound.bundle import CodecPart, VocoderPart, codec_fingerprint
from diffsound.codec.codec import Codec
from diffsound.codec.quantizer import first_stages
from diffsound.config import parse_config
from diffsound.errors import BundleError
from diffsound.training.checkpoint import load_newest, under
from diffsound.training.export import load_export, load_export_of
from diffsound.vocoder import Vocoder, build_vocoder
from diffsound.vocoder.config import GriffinLimConfig
from diffsound.weights import load_into, load_weights

GRIFFIN_LIM = "griffin_lim"


def is_bundle(source: str | Path) -> bool:
    """Whether `source` is a bundle's folder (and not a run's)."""
    try:
        content = json.loads((Path(source) / bundle.CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "format_version" in content


def load_codec(source: str | Path) -> tuple[Codec, MelConfig, str]:
    """The frozen codec of a run or bundle, its mel and its fingerprint."""
    if is_bundle(source):
        return bundle.load_codec(source)
    config, state = load_export_of(source, "codec")
    part = parse_config(CodecPart, {"model": config["codec"], "mel": config["mel"]}, str(source))
    codec = Codec(part.model)
    load_into(codec, state, str(source))
    codec.eval().requires_grad_(False)
    return codec, part.mel, codec_fingerprint(part, codec)


def load_codec_for(source: str | Path, mel: MelConfig) -> Codec:
    """The frozen codec of a run or bundle, refused if it was trained on another mel."""
    codec, theirs, _ = load_codec(source)
    if theirs != mel:
        raise BundleError(
            f"the codec in {source} was trained on another mel; use the same mel group"
        )
    return codec


def load_decoder(source: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The export's config and weights of a decoder's run, or the same of a bundle's decoder."""
    if not is_bundle(source):
        return load_export_of(source, "decoder")
    found = bundle.read_config(source)
    config = {
        "decoder": found.decoder.model.model_dump(mode="json"),
        # An imported one may not say; its own codec is the one it was trained on.
        "codec_fingerprint": found.decoder.codec_fingerprint or bundle.load_codec(source)[2],
        "text_encoder": found.text_encoder.model_dump(mode="json"),
    }
    return config, load_weights(Path(source) / "decoder.safetensors")


def load_vocoder(source: str | Path, mel: MelConfig) -> tuple[Vocoder, VocoderPart]:
    """The frozen vocoder of a run or bundle (or "griffin_lim"), for this mel only."""
    if str(source) == GRIFFIN_LIM:
        part = VocoderPart(model=GriffinLimConfig(), mel=mel)
        return build_vocoder(part.model, mel), part
    if is_bundle(source):
        part = bundle.read_config(source).vocoder
        state = load_weights(Path(source) / "vocoder.safetensors")
    else:
        config, state = load_export_of(source, "vocoder")
        values = {"model": config["vocoder"], "mel": config["mel"]}
        part = parse_config(VocoderPart, values, str(source))
    if part.mel != mel:
        raise BundleError(f"the vocoder in {source} was trained on another mel than the codec")
    vocoder = build_vocoder(part.model, part.mel)
    load_into(vocoder, state, str(source))
    return vocoder.eval().requires_grad_(False), part


def start_from(source: str | Path, kind: str, modules: Mapping[str, nn.Module]) -> None:
    """Put the weights of a run or bundle into `modules`, whose first is the stage's product.

    The product takes the exported weights. A codec may have fewer residual codes than the one it
    begins with, whose first it takes, and a texture and seams, which begin anew. Other players take
    theirs from that run's newest checkpoint, or begin anew if it has none of them (a codec trained
    without a discriminator).
    """
    product, *others = modules
    if is_bundle(source):
        state = load_weights(Path(source) / f"{kind}.safetensors")
    else:
        found, _, state = load_export(source)
        if found != kind:
            raise BundleError(f"{source} holds a {found}, it cannot start a {kind}")
    if isinstance(codec := modules[product], Codec):
        anew = {
            name: own
            for name, own in codec.state_dict().items()
            if ".texture." in name or ".seams." in name
        }
        state = {**anew, **first_stages(state, codec.rows)}
    load_into(modules[product], state, str(source))
    checkpoint = load_newest(Path(source)) if others and Path(source).is_dir() else None
    if checkpoint is not None:
        for name in others:
            if weights := under(checkpoint.tensors["weights"], name):
                load_into(modules[name], weights, str(source))
