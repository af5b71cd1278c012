"""Sharding over processes (FSDP): each holds its part of weights, gradients, moments and average.

torch's own `fully_shard` rather than Accelerate's wrapper of it, which knows no CPU: so the same
code runs over NCCL and over gloo, and is tested.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn


def shard(
    module: nn.Module, units: Iterable[nn.Module], device: str, methods: Sequence[str] = ()
) -> None:
    """Divide a module's parameters over all processes, in place.

    units: parts that are gathered one at a time when they run; the rest is gathered at once.
    methods: what besides `forward` the module may be entered by.
    """
    from torch.distributed import get_world_size
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    # It warns that the result of a part must not be changed in place; no block does.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(device, (get_world_size(),))
    for unit in units:
        fully_shard(unit, mesh=mesh)
    fully_shard(module, mesh=mesh)
    for method in methods:
        register_fsdp_forward_method(module, method)


def whole(tensor: Tensor) -> Tensor:
    """All of a divided tensor, in every process (all must call); others as they are."""
    return tensor.full_tensor() if _divided(tensor) else tensor  # type: ignore[attr-defined]


def divided_like(target: Any, value: Tensor) -> Tensor:
    """A whole tensor, divided as `target` is (all processes must call)."""
    if not _divided(target):
        return value
    from torch.distributed.tensor import distribute_tensor

    value = value.to(target.device)
    return distribute_tensor(value, target.device_mesh, target.placements)


def _divided(tensor: Any) -> bool:
    return hasattr(tensor, "full_tensor")
