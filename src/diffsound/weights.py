"""Weights on disk: safetensors only, whole or refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diffsound.errors import BundleError
from diffsound.files import atomic_write


def save_weights(
    path: str | Path, state: Mapping[str, Tensor], dtype: torch.dtype | None = None
) -> None:
    """Write a state dict; floating tensors are stored as `dtype` when it is given."""
    from safetensors.torch import save_file

    tensors = {
        name: tensor.detach().cpu().contiguous().clone()
        for name, tensor in (cast(state, dtype) if dtype else state).items()
    }
    path = Path(path)
    try:
        with atomic_write(path) as temporary:
            save_file(tensors, temporary)
    except OSError as error:
        raise BundleError(f"cannot write {path}: {error.strerror or error}") from error


def cast(state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The state dict with its floating tensors as `dtype`."""
    return {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in state.items()
    }


def load_weights(path: str | Path) -> dict[str, Tensor]:
    """Read a safetensors file; half-precision tensors come back as float32."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(path)
    try:
        state = load_file(path)
    except FileNotFoundError:
        raise BundleError(f"the weights file {path} is missing") from None
    except (SafetensorError, OSError) as error:
        raise BundleError(f"{path} is damaged or not a safetensors file: {error}") from error
    half = (torch.float16, torch.bfloat16)
    return {name: t.float() if t.dtype in half else t for name, t in state.items()}


def load_into(module: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Load strictly; a missing, unexpected or mis-shaped tensor is named in one line."""
    expected = module.state_dict()
    for name, tensor in expected.items():
        if name not in state:
            raise BundleError(f"{source}: the tensor '{name}' is missing")
        if state[name].shape != tensor.shape:
            raise BundleError(
                f"{source}: '{name}' has the shape {tuple(state[name].shape)}, "
                f"the configuration needs {tuple(tensor.shape)}"
            )
    unexpected = sorted(set(state) - set(expected))
    if unexpected:
        raise BundleError(f"{source}: the tensor '{unexpected[0]}' is not part of this model")
    module.load_state_dict(dict(state))


def fingerprint(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> str:
    """A short name for a model's exact behaviour: its config and its weights in half precision.

    Half precision, so that a model keeps its name when it is stored as fp16.
    """
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for name in sorted(state):
        tensor = state[name].detach().cpu()
        if tensor.is_floating_point():
            tensor = tensor.half()
        digest.update(name.encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
