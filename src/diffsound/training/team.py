"""A stage's players made ready to learn: device, average, sharding, wrapping, optimizers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from diffsound.errors import ConfigError
from diffsound.training import checkpoint
from diffsound.training.checkpoint import Checkpoint
from diffsound.training.config import TrainConfig
from diffsound.training.ema import Ema
from diffsound.training.engine import Accelerator
from diffsound.training.shard import whole
from diffsound.training.stage import Stage


class Team:
    """The modules that learn, the optimizers that move them, and the product's average."""

    def __init__(self, stage: Stage, config: TrainConfig, accelerator: Accelerator) -> None:
        self.stage, self.config, self.accelerator = stage, config, accelerator
        self.modules = {name: player.module for name, player in stage.players.items()}
        for module in self.modules.values():
            module.to(accelerator.device)
        self.ema = Ema(stage.product, config.ema_decay) if config.ema_decay else None
        self.sharded = config.shard and accelerator.num_processes > 1
        if self.sharded:
            self._shard()
        if config.compile:
            stage.compile()
        scale = accelerator.num_processes * config.batch_size if config.lr_per_clip else 1
        self.base_lr = {name: player.lr * scale for name, player in stage.players.items()}
        self.optimizers: dict[str, Any] = {}
        self.prepared: dict[str, nn.Module] = {}
        for name, player in stage.players.items():
            optimizer = torch.optim.AdamW(
                player.parameter_groups(), self.base_lr[name], player.betas, fused=True
            )
            # What is sharded averages its own gradients: it only needs the precision.
            self.prepared[name] = accelerator.prepare_model(
                player.module, evaluation_mode=self.sharded
            )
            self.optimizers[name] = accelerator.prepare_optimizer(optimizer)
        stage.attach(self.prepared, accelerator.device)

    def _shard(self) -> None:
        if self.accelerator.scaler is not None:
            raise ConfigError("train.shard goes with precision fp32 or bf16, not fp16")
        device = self.accelerator.device.type
        for module in self.modules.values():
            self.stage.shard(module, device)
        if self.ema is not None:
            self.stage.shard(self.ema.module, device)

    @property
    def averaged(self) -> nn.Module:
        """The product with averaged weights, or as it is if none are kept."""
        return self.ema.module if self.ema is not None else self.stage.product

    @property
    def buffers(self) -> list[Tensor]:
        return [buffer for module in self.modules.values() for buffer in module.buffers()]

    def set_lr(self, factor: float) -> float:
        """Scale the base learning rates; returns the product's."""
        for name, optimizer in self.optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = self.base_lr[name] * factor
        return factor * next(iter(self.base_lr.values()))

    def move(self, player: str, loss: Tensor) -> tuple[Tensor, bool]:
        """Clip a player's gradients and step its optimizer, unless something is not finite.

        Returns the gradients' norm and whether it moved. Gradients are the same in all processes
        by now, so all of them decide alike.
        """
        accelerator, optimizer = self.accelerator, self.optimizers[player]
        parameters = self.modules[player].parameters()
        norm = accelerator.clip_grad_norm_(parameters, self.config.clip or math.inf)
        norm = whole(torch.as_tensor(norm).detach())
        # Under fp16 an infinite norm is the loss scaler finding its scale; it skips the step.
        scaling = accelerator.scaler is not None and bool(loss.isfinite())
        moved = scaling or bool(norm.isfinite())
        if moved:
            optimizer.step()
        optimizer.zero_grad()
        return norm, moved

    def forget_gradients(self) -> None:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()

    def average(self, step: int) -> None:
        """Move the average after optimizer step `step` (from 1)."""
        if self.ema is not None:
            self.ema.update(self.stage.product, step)

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Everything a checkpoint keeps of the team; if it is sharded, all processes must ask."""
        averaged = self.ema.module if self.ema is not None else None
        return checkpoint.gather(self.modules, self.optimizers, averaged)

    def export_state(self) -> dict[str, Tensor]:
        """What the run hands on; if the team is sharded, all processes must ask."""
        state = self.stage.export_state(self.averaged)
        return {name: whole(tensor) for name, tensor in state.items()}

    def restore(self, found: Checkpoint) -> None:
        """Put back what `tensors` gave."""
        averaged = self.ema.module if self.ema is not None else None
        checkpoint.restore(found, self.modules, self.optimizers, averaged)
