"""Committed configs are valid, and agree with the presets in the code."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from diffsound.codec.config import CodecConfig
from diffsound.config import load_config
from diffsound.decoder.config import ARConfig, DiffsoundConfig
from diffsound.text.features import TextEncoderConfig
from diffsound.training.codec import CodecRun
from diffsound.training.config import STAGES, RunConfig
from diffsound.training.decoder import DecoderRun
from diffsound.training.runs import STAGE_CLASSES

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(
    path
    for path in CONFIGS.rglob("*.yaml")
    if yaml.safe_load(path.read_text(encoding="utf-8")).get("stage") in STAGES
)


def load(path: Path) -> RunConfig:
    kind = yaml.safe_load(path.read_text(encoding="utf-8"))["stage"]
    # What a run has to be given on the command line.
    overrides = ["codec=RUN"] if kind in ("decoder", "matcher") else []
    return load_config(STAGE_CLASSES[kind][0], path, overrides)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_committed_config_is_valid(path: Path) -> None:
    config = load(path)
    assert path.read_text(encoding="utf-8").startswith("# ")
    assert config.train.validate_steps or config.train.validate_epochs


def test_every_preset_has_its_stages() -> None:
    names = {f"{path.parent.name}/{path.stem}" for path in FILES}
    for preset, stages in {
        "paper": ("codec", "vocoder", "diffsound", "pretrain", "ar"),
        "official": ("codec", "vocoder", "diffsound", "ar"),
        "small": ("codec", "vocoder", "decoder", "pretrain", "ar", "matcher"),
        "tiny": ("codec", "vocoder", "decoder", "ar", "matcher"),
    }.items():
        assert {f"{preset}/{stage}" for stage in stages} <= names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("paper/diffsound", DiffsoundConfig.paper()),
        ("paper/pretrain", DiffsoundConfig.paper()),
        ("official/diffsound", DiffsoundConfig.official()),
        ("paper/ar", ARConfig.paper()),
        ("official/ar", ARConfig.official()),
    ],
)
def test_decoder_configs_equal_presets(name: str, expected: DiffsoundConfig | ARConfig) -> None:
    config = load(CONFIGS / f"{name}.yaml")
    assert isinstance(config, DecoderRun)
    sizes = {"rows": expected.rows, "codebook_size": expected.codebook_size}
    given = config.decoder.model_dump(include=config.decoder.model_fields_set)
    filled = type(config.decoder).model_validate({**sizes, "text_dim": expected.text_dim, **given})
    assert filled == expected


def test_codec_configs_equal_their_presets() -> None:
    for name, expected in {
        "paper": CodecConfig.paper(),
        "official": CodecConfig.official(),
        "small": CodecConfig.small(),
        "tiny": CodecConfig.tiny(32),
    }.items():
        config = load(CONFIGS / name / "codec.yaml")
        assert isinstance(config, CodecRun)
        assert config.codec == expected


def test_the_official_config_reads_clip_as_published() -> None:
    config = load(CONFIGS / "official" / "diffsound.yaml")
    assert isinstance(config, DecoderRun)
    assert config.text_encoder == TextEncoderConfig.official_clip()


def test_pretraining_trains_the_decoder_that_training_continues() -> None:
    pretrained, trained = (
        load_config(DecoderRun, CONFIGS / "repeat" / f"{name}.yaml", ["codec=RUN"])
        for name in ("pretrain", "diffsound")
    )
    assert pretrained.decoder == trained.decoder
