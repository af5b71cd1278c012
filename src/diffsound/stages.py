"""The stages of a generation as plain functions, whoever runs their networks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from diffsound.bundle import Bundle, resolve
from diffsound.errors import InputError

Backend = Literal["torch", "int8", "onnx"]


@dataclass(frozen=True)
class Stages:
    """generate: as `TokenDecoder.generate`; decode: tokens [B, F', L'] to mel [B, n_mels, L];
    vocode: mel to wave [B, samples]; backend: who runs them."""

    generate: Callable[..., Tensor]
    decode: Callable[[Tensor], Tensor]
    vocode: Callable[[Tensor], Tensor]
    backend: Backend = "torch"


def torch_stages(bundle: Bundle) -> Stages:
    """The bundle's own modules."""
    return Stages(bundle.decoder.generate, bundle.codec.decode, bundle.vocoder)


def default_backend(bundle: Bundle, device: torch.device | str) -> Backend:
    """What the bundle was made to run with, where it can; benchmarks/backend_speed.py compares."""
    if torch.device(device).type != "cpu" or not int8_runs():
        return "torch"
    return bundle.config.defaults.backend


def int8_runs() -> bool:
    """Whether this build of torch has kernels for int8 on this processor."""
    return torch.backends.quantized.engine != "none"


def make_stages(bundle: Bundle, backend: str, source: str | Path | None = None) -> Stages:
    """The stages of the bundle loaded from `source`, run by a backend.

    int8: the bundle's own modules, the decoder's dense layers in int8; on the CPU. onnx: from the
    files that were exported beside the bundle; on the CPU.
    """
    if backend not in get_args(Backend):
        raise InputError(f"unknown backend '{backend}'; there are: {', '.join(get_args(Backend))}")
    if backend == "torch":
        return torch_stages(bundle)
    if backend == "int8":
        from diffsound.decoder.quantize import quantize_int8

        decoder = quantize_int8(copy.deepcopy(bundle.decoder))
        return Stages(decoder.generate, bundle.codec.decode, bundle.vocoder, "int8")
    from diffsound.export.runtime import onnx_stages

    return onnx_stages(bundle, resolve(source))
