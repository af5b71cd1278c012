"""Low-rank adaptation (Hu et al. 2021): W + (α/r)·B·A with W frozen, merged at the end."""

from __future__ import annotations

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.utils import parametrize

from diffsound.config import Config


class LoraConfig(Config):
    """rank: r. alpha: how strongly the update counts, as α/r."""

    rank: PositiveInt = 8
    alpha: PositiveFloat = 16.0


class LowRankUpdate(nn.Module):
    """W [out, in] -> W + (α/r)·B·A; B starts at zero, so nothing changes at first."""

    def __init__(self, weight: Tensor, config: LoraConfig) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.down = nn.Parameter(torch.randn(config.rank, columns) / columns**0.5)
        self.up = nn.Parameter(torch.zeros(rows, config.rank))
        self.scale = config.alpha / config.rank

    def forward(self, weight: Tensor) -> Tensor:
        return torch.addmm(weight, self.up, self.down, alpha=self.scale)


def add_lora(module: nn.Module, within: nn.Module, config: LoraConfig) -> None:
    """Freeze `module` and give every dense layer of its part `within` a low-rank update."""
    module.requires_grad_(False)
    for layer in within.modules():
        if isinstance(layer, nn.Linear):
            parametrize.register_parametrization(
                layer, "weight", LowRankUpdate(layer.weight, config).to(layer.weight.device)
            )


def merged_state(module: nn.Module) -> dict[str, Tensor]:
    """The state dict of the ordinary module: updates added to the weights they belong to."""
    state = module.state_dict()
    for name, layer in module.named_modules():
        if parametrize.is_parametrized(layer, "weight"):
            prefix = f"{name}.parametrizations.weight."
            state = {key: value for key, value in state.items() if not key.startswith(prefix)}
            state[f"{name}.weight"] = layer.weight.detach()
    return state
