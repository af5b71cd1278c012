"""Finished stages that another run builds on, from a run's export or a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from diffsound.audio.mel import MelConfig
from diffsound.codec.codec import Codec
from diffsound.codec.quantizer import first_stages
from diffsound.config import parse_config
from diffsound.errors import BundleError
from diffsound.files import read_json
from diffsound.model import bundle
from diffsound.model.bundle import codec_fingerprint
from diffsound.model.config import CONFIG_FILE, CodecPart, VocoderPart, read_config
from diffsound.training.checkpoint import load_newest, under
from diffsound.vocoder import Vocoder, build_vocoder
from diffsound.vocoder.config import GriffinLimConfig
from diffsound.weights import load_export, load_export_of, load_into, load_weights

GRIFFIN_LIM = "griffin_lim"


def is_bundle(source: str | Path) -> bool:
    """Whether `source` is a bundle's folder (and not a run's)."""
    try:
        content = read_json(Path(source) / CONFIG_FILE)
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
    """The frozen codec of a run or bundle; refused if it was trained on another mel."""
    codec, theirs, _ = load_codec(source)
    if theirs != mel:
        raise BundleError(
            f"the codec in {source} was trained on another mel; use the same mel group"
        )
    return codec


def load_decoder(source: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and weights of a decoder, from a run's export or a bundle."""
    if not is_bundle(source):
        return load_export_of(source, "decoder")
    found = read_config(source)
    config = {
        "decoder": found.decoder.model.model_dump(mode="json"),
        # An imported decoder may not say; then it is the codec it comes with.
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
        part = read_config(source).vocoder
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

    The product takes the exported weights. A codec may have fewer residual codes than its origin,
    of which it takes the first, and a texture and seams, which start from random weights. Other
    players take theirs from that run's newest checkpoint, or start from random weights if it has
    none (a codec trained without a discriminator).
    """
    product, *others = modules
    if is_bundle(source):
        state = load_weights(Path(source) / f"{kind}.safetensors")
    else:
        found, _, state = load_export(source)
        if found != kind:
            raise BundleError(f"{source} holds a {found}, it cannot start a {kind}")
    if isinstance(codec := modules[product], Codec):
        fresh = {
            name: own
            for name, own in codec.state_dict().items()
            if ".texture." in name or ".seams." in name
        }
        state = {**fresh, **first_stages(state, codec.rows)}
    load_into(modules[product], state, str(source))
    checkpoint = load_newest(Path(source)) if others and Path(source).is_dir() else None
    if checkpoint is not None:
        for name in others:
            if weights := under(checkpoint.tensors["weights"], name):
                load_into(modules[name], weights, str(source))
