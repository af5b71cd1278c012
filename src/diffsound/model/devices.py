"""Where the networks run."""

from __future__ import annotations

import torch

from diffsound.errors import InputError

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
