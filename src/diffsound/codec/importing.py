"""Read the VQ-VAE of a published SpecVQGAN or Diffsound checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from diffsound.codec.codec import Codec
from diffsound.codec.config import CodecConfig
from diffsound.config import parse_config
from diffsound.errors import BundleError, ConfigError

_CODEBOOK = "quantize.embedding.weight"
# A VQ-VAE's own file, inside a Diffsound checkpoint, inside an autoregressive one.
_PREFIXES = ("", "content_codec.", "first_stage_model.")
# Training's own: the discriminator and the perceptual network.
_IGNORED = ("loss.",)


def codec_from_published(
    state_dict: Mapping[str, Tensor], n_mels: int = 80
) -> tuple[CodecConfig, dict[str, Tensor]]:
    """The config and `Codec` state dict of published weights; sizes are read from the shapes.

    state_dict: the checkpoint's `['state_dict']` (a VQ-VAE) or `['model']` (Diffsound, where the
        VQ-VAE is under `content_codec.`). `n_mels` cannot be read from a convolution's shape.
    """
    weights = _strip_prefix(state_dict)
    config = _read_config(weights, n_mels)
    with torch.device("meta"):
        expected = Codec(config).state_dict()
    converted = {key: value for key, value in weights.items() if key != _CODEBOOK}
    converted["quantizer.codebooks.codes"] = weights[_CODEBOOK][None]
    _compare(converted, expected)
    return config, {key: converted[key].detach().float().contiguous() for key in expected}


def _strip_prefix(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The VQ-VAE's weights under their own names, without what only its training used."""
    prefix = next((p for p in _PREFIXES if p + _CODEBOOK in state_dict), None)
    if prefix is None:
        raise BundleError(
            f"the checkpoint has no VQ-VAE: there is no key '{_CODEBOOK}', "
            f"nor one under {' or '.join(repr(p) for p in _PREFIXES if p)}"
        )
    inner = {
        key.removeprefix(prefix): value
        for key, value in state_dict.items()
        if key.startswith(prefix)
    }
    return {key: value for key, value in inner.items() if not key.startswith(_IGNORED)}


def _read_config(weights: Mapping[str, Tensor], n_mels: int) -> CodecConfig:
    def shape(key: str, axes: int = 4) -> tuple[int, ...]:
        if key not in weights:
            raise BundleError(f"the VQ-VAE has no '{key}'")
        found = tuple(weights[key].shape)
        if len(found) != axes or 0 in found:
            raise BundleError(f"the VQ-VAE's '{key}' is {list(found)}, not a {axes}-D weight")
        return found

    def count(stem: str) -> int:
        """How many of stem.0, stem.1, … there are."""
        found = 0
        while any(key.startswith(f"{stem}.{found}.") for key in weights):
            found += 1
        return found

    width = shape("encoder.conv_in.weight")[0]
    levels = range(count("encoder.down"))
    widths = [shape(f"encoder.down.{level}.block.0.conv1.weight")[0] for level in levels]
    halved = {
        level for level in levels if f"encoder.down.{level}.downsample.conv.weight" in weights
    }
    codebook_size, code_dim = shape(_CODEBOOK, axes=2)
    if not widths or any(value % width for value in widths):
        raise BundleError(f"the VQ-VAE's widths {widths} are not multiples of its first, {width}")
    published = CodecConfig.official().quantizer
    try:
        return parse_config(
            CodecConfig,
            {
                "n_mels": n_mels,
                "backbone": {
                    "kind": "conv2d",
                    "width": width,
                    "multipliers": [value // width for value in widths],
                    "strides": [(2, 2) if level in halved else (1, 1) for level in levels[:-1]],
                    "encoder_blocks": count("encoder.down.0.block"),
                    "decoder_blocks": count("decoder.up.0.block"),
                    "attention_levels": [
                        level for level in levels if count(f"encoder.down.{level}.attn")
                    ],
                    "latent": shape("encoder.conv_out.weight")[0],
                },
                "quantizer": published.model_dump()
                | {"codebook_size": codebook_size, "code_dim": code_dim},
            },
            source="the VQ-VAE's shapes",
        )
    except ConfigError as error:
        raise BundleError(str(error)) from error


def _compare(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse at the first key or shape that does not fit."""
    for key, tensor in expected.items():
        if key not in found:
            raise BundleError(f"the VQ-VAE has no '{key}'")
        if found[key].shape != tensor.shape:
            raise BundleError(
                f"the VQ-VAE's '{key}' is {list(found[key].shape)}, not {list(tensor.shape)}"
            )
    for key in found:
        if key not in expected:
            raise BundleError(f"the VQ-VAE has an unexpected '{key}'")
