"""Finished stages of runs and bundles: loaded for other runs, and assembled into a bundle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diffsound.audio.mel import MelConfig
from diffsound.audio.mixing import Extent, extent
from diffsound.codec.codec import Codec
from diffsound.codec.quantizer import first_stages
from diffsound.config import apply_overrides, parse_config
from diffsound.data.shards import PreparedData
from diffsound.decoder import build_decoder
from diffsound.decoder.config import ARConfig
from diffsound.errors import BundleError, ConfigError, DataError, InputError
from diffsound.files import read_json
from diffsound.generation.settings import GenerationDefaults
from diffsound.judges import JudgeKind, load_judge
from diffsound.model import bundle as bundles
from diffsound.model.bundle import (
    CONFIG_FILE,
    Bundle,
    BundleConfig,
    CodecPart,
    DecoderPart,
    VocoderPart,
    codec_fingerprint,
    read_config,
)
from diffsound.model.coverage import Coverage, length_row
from diffsound.training.run_files import load_newest, under
from diffsound.vocoder import GriffinLimConfig, Vocoder, build_vocoder
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
        return bundles.load_codec(source)
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
        "codec_fingerprint": found.decoder.codec_fingerprint or bundles.load_codec(source)[2],
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
    of which it takes the first, and a texture, which starts from random weights. Other players take
    theirs from that run's newest checkpoint, or start from random weights if it has none (a codec
    trained without a discriminator).
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
            name: own for name, own in codec.state_dict().items() if name.startswith("texture.")
        }
        state = {**fresh, **first_stages(state, codec.rows)}
    load_into(modules[product], state, str(source))
    checkpoint = load_newest(Path(source)) if others and Path(source).is_dir() else None
    if checkpoint is not None:
        for name in others:
            if weights := under(checkpoint.tensors["weights"], name):
                load_into(modules[name], weights, str(source))


def assemble(
    codec: str | Path,
    decoder: str | Path,
    vocoder: str | Path = GRIFFIN_LIM,
    *,
    name: str,
    card: str = "",
    defaults: Iterable[str] = (),
    judges: Mapping[JudgeKind, str | Path] | None = None,
) -> Bundle:
    """A bundle of three finished runs, or of other bundles' stages.

    defaults: "key=value" generation settings, e.g. "guidance_scale=3".
    judges: runs of a captioner, classifier or matcher to include.
    """
    judges = judges or {}
    for judge, run in judges.items():
        load_judge(judge, run)  # refuses a wrong or damaged one before anything is written
    config, state = load_decoder(decoder)
    frozen, mel, fingerprint = load_codec(codec)
    if fingerprint != config["codec_fingerprint"]:
        raise BundleError(
            f"the decoder in {decoder} was trained with codec {config['codec_fingerprint']}, "
            f"{codec} is {fingerprint}; give the codec it was trained on"
        )
    voice, vocoder_part = load_vocoder(vocoder, mel)
    values = {"model": config["decoder"], "codec_fingerprint": fingerprint}
    part = parse_config(DecoderPart, values, source=str(decoder))
    # An AR decoder takes one step per token, so there is no number of steps to set.
    base: dict[str, Any] = {"num_inference_steps": None} if isinstance(part.model, ARConfig) else {}
    chosen = parse_config(GenerationDefaults, apply_overrides(base, defaults), source="--default")
    steps, most = chosen.num_inference_steps, getattr(part.model, "timesteps", None)
    if "num_inference_steps" in chosen.model_fields_set and steps and most and steps > most:
        raise ConfigError(
            f"--default: num_inference_steps is {steps}; the decoder has {most} steps"
        )
    made = build_decoder(part.model)
    load_into(made, state, str(decoder))
    return Bundle(
        config=parse_config(
            BundleConfig,
            {
                "name": name,
                "text_encoder": config["text_encoder"],
                "codec": CodecPart(model=frozen.config, mel=mel),
                "decoder": part,
                "vocoder": vocoder_part,
                "defaults": chosen,
            },
            source=str(decoder),
        ),
        codec=frozen,
        decoder=made,
        vocoder=voice,
        card=card,
        judges={judge: Path(run) for judge, run in judges.items()},
    )


def training_captions(data: PreparedData, encoder: str) -> tuple[list[str], Tensor, Tensor]:
    """The distinct captions of the training clips, their stored vectors [N, D], and how long their
    sounds are, as in `Coverage.lengths` [N, 4].

    encoder: fingerprint of the text encoder.
    """
    text, rate = data.text(encoder), data.index.mel.sample_rate
    found: dict[str, Tensor] = {}
    extents: dict[str, list[Extent]] = {}
    for clip in data.where(split="train"):
        captions = data.records[clip].captions
        new = [place for place, caption in enumerate(captions) if caption not in found]
        if new:
            pooled = text.of(clip).pooled
            found |= {captions[place]: pooled[place] for place in new}
        length = extent(data.wave(clip), rate)
        for caption in captions:
            extents.setdefault(caption, []).append(length)
    if not found:
        raise DataError(f"{data.folder} has no caption of a training clip")
    lengths = torch.stack([length_row(extents[caption]) for caption in found])
    return list(found), torch.stack(list(found.values())), lengths


def coverage_of(bundle: Bundle, folder: str | Path) -> Coverage:
    """The captions the bundle was trained on, for `Sound.coverage`, and how long they sound."""
    kind = bundle.config.text_encoder.kind
    if kind != "minilm":
        raise InputError(f"coverage needs MiniLM's text vectors; this decoder uses {kind}")
    data = PreparedData.open(folder)
    captions, pooled, lengths = training_captions(data, bundle.text_encoder.fingerprint)
    return Coverage.choose(captions, pooled, lengths=lengths)


def build(
    out: str | Path,
    codec: str | Path,
    decoder: str | Path,
    vocoder: str | Path,
    *,
    name: str | None = None,
    card: str | Path | None = None,
    defaults: Iterable[str] = (),
    judges: Mapping[JudgeKind, str | Path] | None = None,
    coverage: str | Path | None = None,
    half: bool = True,
    overwrite: bool = False,
) -> Bundle:
    """`assemble` a bundle and write it to a folder, by default as float16.

    coverage: the prepared folder the decoder was trained on, so that prompts can be compared with
        what it knows.
    """
    out = Path(out)
    if (out / "config.json").exists() and not overwrite:
        raise InputError(f"{out} already holds a bundle; choose another folder, or --overwrite it")
    text = ""
    if card is not None:
        try:
            text = Path(card).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read the model card {card}: {error}") from error
    bundle = assemble(
        codec, decoder, vocoder,
        name=name or out.name, card=text, defaults=defaults, judges=judges,
    )  # fmt: skip
    if coverage is not None:
        bundle = replace(bundle, coverage=coverage_of(bundle, coverage))
    bundle.save_pretrained(out, torch.float16 if half else torch.float32)
    return bundle
