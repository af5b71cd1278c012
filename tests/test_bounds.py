"""Every number of a network's config is bounded, and every committed config is within bounds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from diffsound.audio.mel import MelConfig
from diffsound.codec.config import CodecConfig, DiscriminatorConfig
from diffsound.config import Config, load_config, parse_config, read_yaml
from diffsound.decoder.config import ARConfig, DiffsoundConfig
from diffsound.errors import ConfigError
from diffsound.judges.captioner import CaptionerConfig
from diffsound.judges.classifier import ClassifierConfig
from diffsound.judges.ranking import MatcherConfig
from diffsound.model.bundle import BundleConfig
from diffsound.training.runs import STAGE_CLASSES
from diffsound.vocoder import GriffinLimConfig, ISTFTConfig, MelGANConfig

CONFIGS = Path(__file__).parents[1] / "configs"
# What a few configs leave to the command line, by name.
NEEDS = {name: ["codec=x"] for name in ("ar", "decoder", "matcher", "pretrain")}
NETWORKS: list[type[Config]] = [
    ARConfig, BundleConfig, CaptionerConfig, ClassifierConfig, CodecConfig, DiffsoundConfig,
    DiscriminatorConfig, GriffinLimConfig, ISTFTConfig, MatcherConfig, MelConfig, MelGANConfig,
]  # fmt: skip


def unbounded(node: Any, path: str = "") -> Iterator[str]:
    """Paths of the numbers and lists of a JSON schema that have no maximum."""
    if isinstance(node, list):
        for part in node:
            yield from unbounded(part, path)
    if not isinstance(node, dict):
        return
    kind = node.get("type")
    if kind in ("integer", "number") and not node.keys() & {"maximum", "exclusiveMaximum", "const"}:
        yield path
    if kind == "array" and "maxItems" not in node:
        yield path
    for key, part in node.items():
        if key not in ("default", "examples"):
            yield from unbounded(part, f"{path}.{key}")


@pytest.mark.parametrize("model", NETWORKS, ids=lambda model: model.__name__)
def test_every_number_and_list_has_a_maximum(model: type[Config]) -> None:
    found = set(unbounded(TypeAdapter(model).json_schema()))
    assert found <= {".properties.format_version"}  # compared, and used for nothing else


@pytest.mark.parametrize(
    "path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: str(path.relative_to(CONFIGS))
)
def test_committed_configs_are_within_bounds(path: Path) -> None:
    stage = read_yaml(path).get("stage")
    if stage is not None:
        load_config(STAGE_CLASSES[stage][0], path, NEEDS.get(path.stem, ()))


@pytest.mark.parametrize(
    ("model", "bomb"),
    [
        (CodecConfig, {"backbone": {"kind": "linear", "time_stride": 10**6}}),
        (CodecConfig, {"backbone": {"kind": "conv2d", "multipliers": [1] * 8,
                                    "strides": [[1, 256]] * 7}}),
        (CodecConfig, {"quantizer": {"codebook_size": 10**9}}),
        (CodecConfig, {"n_mels": 10**12}),
        (MelConfig, {"n_mels": 10**12}),
        (MelConfig, {"n_fft": 2**40, "hop_length": 1}),
        (GriffinLimConfig, {"iterations": 10**12}),
        (DiffsoundConfig, {"timesteps": 10**12}),
        (DiffsoundConfig, {"layers": 10**400}),
        (ISTFTConfig, {"width": float("inf")}),
        (MelGANConfig, {"ratios": [1] * 10_000}),
    ],
)  # fmt: skip
def test_config_bombs_are_refused(model: type[Config], bomb: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(model, bomb)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
