"""Presets and what a decoder's config refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from diffsound.config import parse_config
from diffsound.decoder import build_decoder
from diffsound.decoder.config import ARConfig, DecoderConfig, DiffsoundConfig
from diffsound.errors import ConfigError


def parameters(config: DiffsoundConfig | ARConfig) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in build_decoder(config).parameters())


def test_sizes_of_the_published_models() -> None:
    assert parameters(DiffsoundConfig.paper()) == 383_383_808
    assert parameters(DiffsoundConfig.official()) == 383_383_808
    assert parameters(ARConfig.official()) == 240_652_288
    with torch.device("meta"):
        block = build_decoder(DiffsoundConfig.paper()).transformer.blocks[0]
    assert sum(p.numel() for p in block.parameters()) == 20_147_200


def test_tiny_is_tiny() -> None:
    assert parameters(DiffsoundConfig.tiny()) < 100_000
    assert parameters(ARConfig.tiny()) < 100_000


@pytest.mark.parametrize("config", [DiffsoundConfig.official(), ARConfig.tiny()])
def test_kind_chooses_the_config(config: DiffsoundConfig | ARConfig) -> None:
    read: Any = TypeAdapter(DecoderConfig).validate_python(config.model_dump(mode="json"))
    assert read == config
    assert type(read) is type(config)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (DiffsoundConfig, {"width": 30, "heads": 4}, "multiple of heads"),
        (DiffsoundConfig, {"code_width": 8}, "position 'column'"),
        (DiffsoundConfig, {"position": "column", "position_scheme": "official"}, "'cell'"),
        (DiffsoundConfig, {"schedule": {"kind": "official", "transition": "mask"}}, "official"),
        (DiffsoundConfig, {"schedule": {"gamma_end": 1.5}}, "gamma_end"),
        (DiffsoundConfig, {"local": 3}, "position 'column'"),
        (DiffsoundConfig, {"local": 4, "position": "column"}, "odd"),
        (DiffsoundConfig, {"layer": 3}, "did you mean 'layers'"),
        (ARConfig, {"position_scheme": "official"}, "condition 'pooled'"),
        (ARConfig, {"dropout": 1.0}, "dropout"),
    ],
)
def test_contradictions_are_named(kind: type, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(kind, values)
