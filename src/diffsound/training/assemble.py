"""Joining finished runs into a bundle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffsound.audio.events import Extent, extent
from diffsound.config import apply_overrides, parse_config
from diffsound.data.shards import PreparedData
from diffsound.decoder import build_decoder
from diffsound.decoder.config import ARConfig
from diffsound.errors import BundleError, ConfigError, DataError, InputError
from diffsound.generation.settings import GenerationDefaults
from diffsound.judges import JudgeKind, load_judge
from diffsound.model.bundle import Bundle
from diffsound.model.config import BundleConfig, CodecPart, DecoderPart
from diffsound.model.coverage import Coverage, length_row
from diffsound.training.frozen import load_codec, load_decoder, load_vocoder
from diffsound.weights import load_into


def assemble(
    codec: str | Path,
    decoder: str | Path,
    vocoder: str | Path = "griffin_lim",
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
) -> Bundle:
    """`assemble` a bundle and write it to a new folder, by default as float16.

    coverage: the prepared folder the decoder was trained on, so that prompts can be compared with
        what it knows.
    """
    out = Path(out)
    if (out / "config.json").exists():
        raise InputError(f"{out} already holds a bundle; choose another folder")
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
