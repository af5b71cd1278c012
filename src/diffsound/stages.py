"""The stages of a generation as plain functions, whoever runs their networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from torch import Tensor

from diffsound.bundle import Bundle, resolve
from diffsound.errors import InputError

Backend = Literal["torch", "onnx"]
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

    onnx: from the files that were exported beside the bundle; on the CPU.
    """
    if backend not in get_args(Backend):
        raise InputError(f"unknown backend '{backend}'; there are: {', '.join(get_args(Backend))}")
    if backend == "torch":
        return torch_stages(bundle)
    from diffsound.export.runtime import onnx_stages

    return onnx_stages(bundle, resolve(source))
