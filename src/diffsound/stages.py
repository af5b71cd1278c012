"""The stages of a generation as plain functions, whoever runs their networks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from torch import Tensor

from diffsound.bundle import Bundle, resolve
from diffsound.errors import InputError

Backend = Literal["torch", "int8", "onnx"]
# benchmarks/backend_speed.py says which is faster.
DEFAULT_BACKEND: Backend = "torch"


@dataclass(frozen=True)
class Stages:
    """generate: as `TokenDecoder.generate`; decode: tokens [B, F', L'] to mel [B, n_mels, L];
    vocode: mel to wave [B, samples]."""

    generate: Callable[..., Tensor]
    decode: Callable[[Tensor], Tensor]
    vocode: Callable[[Tensor], Tensor]


def torch_stages(bundle: Bundle) -> Stages:
    """The bundle's own modules."""
    return Stages(bundle.decoder.generate, bundle.codec.decode, bundle.vocoder)


def make_stages(bundle: Bundle, source: str | Path | None, backend: str) -> Stages:
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
        return Stages(decoder.generate, bundle.codec.decode, bundle.vocoder)
    from diffsound.export.runtime import onnx_stages

    return onnx_stages(bundle, resolve(source))
