"""Random weights under the published key names: small stand-ins for the published files."""

from __future__ import annotations

import torch
from torch import Tensor

from diffsound.codec.codec import Codec
from diffsound.codec.config import CodecConfig


def diffsound(
    layers: int, width: int, text: int, codes: int, rows: int, columns: int, steps: int
) -> dict[str, Tensor]:
    """Random weights under the published names, as the averaged weights have them."""
    torch.manual_seed(0)

    def dense(name: str, inputs: int, outputs: int) -> dict[str, Tensor]:
        weight = torch.randn(outputs, inputs) * inputs**-0.5
        return {f"{name}.weight": weight, f"{name}.bias": torch.randn(outputs) * 0.3}

    weights = {
        "content_emb.emb.weight": torch.randn(codes + 1, width),
        "content_emb.height_emb.weight": torch.randn(rows, width),
        "content_emb.width_emb.weight": torch.randn(columns, width),
        "to_logits.0.weight": torch.randn(width),
        "to_logits.0.bias": torch.randn(width),
    }
    weights |= dense("to_logits.1", width, codes)
    for i in range(layers):
        block = f"blocks.{i}"
        for norm in ("ln1", "ln1_1"):
            weights[f"{block}.{norm}.emb.weight"] = torch.randn(steps, width)
            weights |= dense(f"{block}.{norm}.linear", width, 2 * width)
        weights[f"{block}.ln2.weight"] = torch.randn(width)
        weights[f"{block}.ln2.bias"] = torch.randn(width)
        for attention, source in (("attn1", width), ("attn2", text)):
            weights |= dense(f"{block}.{attention}.query", width, width)
            weights |= dense(f"{block}.{attention}.key", source, width)
            weights |= dense(f"{block}.{attention}.value", source, width)
            weights |= dense(f"{block}.{attention}.proj", width, width)
        weights[f"{block}.attn2.mask"] = torch.ones(1, 1, 4, 4)
        weights |= dense(f"{block}.mlp.0", width, 4 * width)
        weights |= dense(f"{block}.mlp.2", 4 * width, width)
    return {f"transformer.{name}": tensor for name, tensor in weights.items()}


def codec(config: CodecConfig) -> dict[str, Tensor]:
    """A VQ-VAE's `['state_dict']`: our names are the published ones but for the codebook's."""
    torch.manual_seed(1)
    weights = dict(Codec(config).state_dict())
    weights["quantize.embedding.weight"] = weights.pop("quantizer.codebooks.codes")[0]
    return weights | {"loss.discriminator.main.0.weight": torch.zeros(1)}
