"""Published MelGAN weights, with the sizes read from their shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from diffsound.audio.mel import MelConfig
from diffsound.errors import BundleError, ConfigError
from diffsound.vocoder.config import MelGANConfig
from diffsound.vocoder.melgan import MelGAN


def melgan_from_published(
    state_dict: Mapping[str, Tensor], mel: MelConfig | None = None
) -> tuple[MelGANConfig, dict[str, Tensor]]:
    """The config of a published MelGAN generator, and its weights for `MelGAN` of that config.

    `mel` (the published one by default) is what the weights are meant to hear. Weights of another
    network, or of another mel, raise a BundleError.
    """
    mel = mel or MelConfig()
    weights = {name: value for name, value in state_dict.items() if name.startswith("model.")}
    config = _read_config(weights)
    try:
        expected = MelGAN(config, mel).state_dict()
    except ConfigError as error:
        raise BundleError(f"this MelGAN does not fit the mel: {error}") from error
    if missing := sorted(expected.keys() ^ weights.keys()):
        raise BundleError(f"these are not the weights of a MelGAN generator: see '{missing[0]}'")
    for name, value in expected.items():
        if weights[name].shape != value.shape:
            raise BundleError(
                f"this MelGAN does not fit the mel: '{name}' is {list(weights[name].shape)}, "
                f"not {list(value.shape)}"
            )
    return config, {name: weights[name].float() for name in expected}


def _read_config(weights: Mapping[str, Tensor]) -> MelGANConfig:
    """Sizes from shapes: an upsampler's kernel is twice its ratio, and the last width is `base`."""
    convolutions = {
        int(match[1]): value
        for name, value in weights.items()
        if (match := re.fullmatch(r"model\.(\d+)\.weight_v", name)) and value.ndim == 3
    }
    blocks = {match[1] for name in weights if (match := re.match(r"model\.(\d+)\.block\.", name))}
    ordered = [value for _, value in sorted(convolutions.items())]
    upsamplers = ordered[1:-1]
    if not upsamplers or not blocks or len(blocks) % len(upsamplers):
        raise BundleError("these are not the weights of a MelGAN generator")
    return MelGANConfig(
        base=ordered[-1].shape[1],
        residual_layers=len(blocks) // len(upsamplers),
        ratios=tuple(value.shape[2] // 2 for value in upsamplers),
    )
