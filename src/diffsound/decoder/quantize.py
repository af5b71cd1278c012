"""Int8 inference on a CPU: dense layers with int8 weights and activations quantised on the fly."""

from __future__ import annotations

import warnings
from typing import TypeVar

import torch
from torch import Tensor, nn

from diffsound.decoder.codes import ColumnEmbedding
from diffsound.decoder.layers import CrossAttention, FeedForward, SelfAttention
from diffsound.threads import torch_threads

DecoderT = TypeVar("DecoderT", bound=nn.Module)


class Int8Linear(nn.Module):
    """A dense layer with one int8 scale per output; x [..., in] float32 -> [..., out] float32.

    Its packed weights are no parameters: it neither trains nor is saved.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        scale = weight.abs().amax(dim=1).clamp_min(1e-12) / 127
        zero = torch.zeros(len(scale), dtype=torch.long)
        with warnings.catch_warnings():
            # torch announces the end of quantised tensors without a successor that runs eagerly.
            warnings.filterwarnings("ignore", message="torch.quantize_per_tensor")
            quantized = torch.quantize_per_channel(weight, scale.double(), zero, 0, torch.qint8)
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.packed = torch.ops.quantized.linear_prepack(quantized, bias)

    def forward(self, x: Tensor) -> Tensor:
        # Seven bits for the activations: CPUs without VNNI add pairs of products in 16 bits, which
        # would saturate with eight.
        return torch.ops.quantized.linear_dynamic(x.float(), self.packed, reduce_range=True)


def quantize_int8(decoder: DecoderT) -> DecoderT:
    """Replace the dense layers that run at every step by int8 ones, in place; CPU inference only.

    What runs once per generation (text keys, timestep scales) and the output head, where the
    tokens are decided, stay in float32. So do the columns' embeddings, as a table: int8 rounding
    would turn a last bit that depends on the number of cores into another token.
    """
    for module in list(decoder.modules()):
        if isinstance(module, SelfAttention):
            names = ["qkv", "out"]
        elif isinstance(module, CrossAttention):
            names = ["query", "out"]
        elif isinstance(module, FeedForward):
            names = ["up", "down"]
        else:
            continue
        for name in names:
            setattr(module, name, Int8Linear(getattr(module, name)))
    for module in list(decoder.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, ColumnEmbedding):
                with torch_threads(1):
                    setattr(module, name, child.folded())
    return decoder.eval()
