"""Devices: what is missing is said in one line, with what to install."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import diffsound
from diffsound.errors import InputError
from diffsound.model.backends import usable_device

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


def test_the_cpu_is_always_there() -> None:
    assert usable_device("cpu") == torch.device("cpu")
    assert usable_device(torch.device("cpu")) == torch.device("cpu")


@needs_no_gpu
@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda", "the device 'cuda' is not available: .* install "),
        ("cuda:1", "the device 'cuda:1' is not available: .* install "),
        ("mps", "the device 'mps' is not available: it needs a Mac"),
        ("gpu", "unknown device 'gpu'; use cpu, cuda "),
        ("meta", "the device 'meta' is not available here"),
    ],
)
def test_a_missing_device_says_what_to_install(
    tiny_folder: Path, device: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as refused:
        diffsound.load(str(tiny_folder), device=device)
    assert "\n" not in str(refused.value)
