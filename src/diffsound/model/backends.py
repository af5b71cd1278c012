"""What a bundle's networks run on: torch, torch with int8 weights or onnxruntime; the device."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor, nn

from diffsound.codec.codec import Codec
from diffsound.decoder.layers import ColumnEmbedding, CrossAttention, FeedForward, SelfAttention
from diffsound.errors import BundleError, InputError
from diffsound.model.bundle import Bundle
from diffsound.threads import torch_threads
from diffsound.vocoder import Vocoder

if TYPE_CHECKING:
    from diffsound.decoder.ar import ARDecoder
    from diffsound.decoder.diffsound import Diffsound
    from diffsound.model.onnx_runtime import OnnxCodec, OnnxVocoder

Backend = Literal["torch", "int8", "onnx"]


class Networks(NamedTuple):
    """The networks of a generation; whatever runs them, each keeps its stage's contract."""

    decoder: Diffsound | ARDecoder
    codec: Codec | OnnxCodec
    vocoder: Vocoder | OnnxVocoder


def default_backend(bundle: Bundle, device: torch.device | str) -> Backend:
    """The bundle's own backend, if this machine supports it."""
    if torch.device(device).type != "cpu" or not int8_runs():
        return "torch"
    return bundle.config.defaults.backend


def int8_runs() -> bool:
    """Whether this build of torch has kernels for int8 on this processor."""
    return torch.backends.quantized.engine != "none"


def networks(bundle: Bundle, backend: str, device: torch.device | str = "cpu") -> Networks:
    """The bundle's networks on a device, run by a backend.

    int8: the bundle's own modules, with the decoder's dense layers in int8. onnx: the files that
    were exported beside the bundle. Both run on the CPU.
    """
    if backend not in get_args(Backend):
        raise InputError(f"unknown backend '{backend}'; there are: {', '.join(get_args(Backend))}")
    if backend != "torch" and torch.device(device).type != "cpu":
        raise InputError(f"the backend '{backend}' runs on the CPU, not on '{device}'")
    for module in (bundle.codec, bundle.decoder, bundle.vocoder):
        module.to(device)
    if backend == "torch":
        return Networks(bundle.decoder, bundle.codec, bundle.vocoder)
    if backend == "int8":
        decoder = quantize_int8(copy.deepcopy(bundle.decoder))
        return Networks(decoder, bundle.codec, bundle.vocoder)
    from diffsound.model.onnx_runtime import onnx_networks

    if bundle.folder is None:
        raise BundleError("the backend 'onnx' needs a bundle loaded from its folder")
    return Networks(*onnx_networks(bundle, bundle.folder))


DecoderT = TypeVar("DecoderT", bound=nn.Module)


class Int8Linear(nn.Module):
    """A dense layer with one int8 scale per output; x [..., in] float32 -> [..., out] float32.

    The packed weights are not parameters: it can be neither trained nor saved.
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


_INSTALL = "https://pytorch.org/get-started/locally"


def usable_device(device: torch.device | str) -> torch.device:
    """The device of this name; an InputError says what a missing one needs."""
    try:
        found = torch.device(device)
    except RuntimeError:
        raise InputError(
            f"unknown device '{device}'; use cpu, cuda (NVIDIA, with a CUDA build of PyTorch from "
            f"{_INSTALL}) or mps (Apple)"
        ) from None
    if found.type == "cuda" and not torch.cuda.is_available():
        reason = (
            "PyTorch finds no GPU; install its driver"
            if torch.version.cuda or torch.version.hip
            else f"this PyTorch is a CPU build; install a CUDA build from {_INSTALL}"
        )
        raise InputError(f"the device '{device}' is not available: {reason}, or use cpu")
    if found.type == "mps" and not torch.backends.mps.is_available():
        raise InputError(
            f"the device '{device}' is not available: it needs a Mac with an Apple GPU, macOS 12.3 "
            f"or later and PyTorch for macOS from {_INSTALL}; or use cpu"
        )
    try:
        torch.zeros(1, device=found).cpu()
    except (AssertionError, ImportError, RuntimeError):  # "cuda:7" of one, "xpu", "meta"
        raise InputError(
            f"the device '{device}' is not available here; use cpu, or another one that PyTorch has"
        ) from None
    return found
