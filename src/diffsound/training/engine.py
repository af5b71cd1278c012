"""What moves the weights: device and processes, optimizers, averaged weights, sharding.

Accelerate brings device, precision, accumulation and processes. Sharding (FSDP) uses torch's own
`fully_shard`, since Accelerate's wrapper does not support CPUs: the same code runs over NCCL and
over gloo, where it is tested.
"""

from __future__ import annotations

import copy
import importlib.util
import math
import subprocess
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diffsound.errors import ConfigError, MissingExtraError
from diffsound.training.config import TrainConfig
from diffsound.training.run_files import Checkpoint, under
from diffsound.training.stage import Stage

try:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedDataParallelKwargs, broadcast, send_to_device
except ImportError:
    raise MissingExtraError("accelerate", "train") from None

__all__ = ["Accelerator", "Ema", "Team", "broadcast", "make_accelerator", "send_to_device", "shard"]

_PRODUCT = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"


def make_accelerator(config: TrainConfig, run: Path | None = None) -> Accelerator:
    """The accelerator as launched: by `accelerate launch`, `torchrun`, or neither.

    run: the folder for the tracker's files; without it nothing is tracked.
    """
    precision = "no" if config.precision == "fp32" else config.precision
    if precision == "bf16" and not torch.accelerator.is_available():
        _check_bf16_on_cpu()
    tracker = config.log if run is not None and config.log != "none" else None
    if tracker is not None and importlib.util.find_spec(tracker) is None:
        raise ConfigError(
            f"train.log={tracker} needs {tracker}: pip install {tracker}, or set train.log=none"
        )
    # Buffers stay equal without help (codebooks are summed over processes), and copying them
    # between two passes of a discriminator would break the gradients of the first.
    kwargs = DistributedDataParallelKwargs(broadcast_buffers=False)
    # Accelerate keeps its settings for the whole process; the next run may have others.
    AcceleratorState._reset_state()
    try:
        return Accelerator(
            mixed_precision=precision,
            gradient_accumulation_steps=config.accumulation,
            log_with=tracker,
            project_dir=run,
            kwargs_handlers=[kwargs],
        )
    except ValueError as error:  # bf16 on a GPU that does not support it
        raise ConfigError(f"train.precision={config.precision} is not possible: {error}") from error


def _check_bf16_on_cpu() -> None:
    """Refuse bf16 where a product of it crashes the process.

    Some virtual machines announce matrix instructions (AMX) without saying how large their tiles
    are, and oneDNN believes them. Only another process can try that and survive.
    """
    tried = subprocess.run([sys.executable, "-c", _PRODUCT], capture_output=True, check=False)
    if tried.returncode:
        raise ConfigError(
            "train.precision=bf16 is not possible: this processor announces instructions that it "
            "does not have; use fp32, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
        )


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
            averaged = [] if self.ema is None else [self.ema.module]
            for module in (*self.modules.values(), *averaged):
                stage.shard(module, accelerator.device.type)
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
            # A sharded module averages its own gradients; it only needs the precision.
            self.prepared[name] = accelerator.prepare_model(
                player.module, evaluation_mode=self.sharded
            )
            self.optimizers[name] = accelerator.prepare_optimizer(optimizer)
        stage.attach(self.prepared, accelerator.device)

    @property
    def averaged(self) -> nn.Module:
        """The product with averaged weights, or the product itself if none are kept."""
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

    def move(self, player: str) -> tuple[Tensor, bool]:
        """Clip a player's gradients and step its optimizer, unless something is not finite.

        Returns the gradients' norm and whether the player moved. Gradients are equal in all
        processes by now, so all processes decide the same.
        """
        accelerator, optimizer = self.accelerator, self.optimizers[player]
        parameters = self.modules[player].parameters()
        norm = accelerator.clip_grad_norm_(parameters, self.config.clip or math.inf)
        norm = whole(torch.as_tensor(norm).detach())
        moved = bool(norm.isfinite())
        if moved:
            optimizer.step()
        optimizer.zero_grad()
        return norm, moved

    def forget_gradients(self) -> None:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()

    def average(self, step: int) -> None:
        """Update the average after optimizer step `step` (from 1)."""
        if self.ema is not None:
            self.ema.update(self.stage.product, step)

    def export_state(self) -> dict[str, Tensor]:
        """The weights the run exports; if the team is sharded, all processes must call."""
        state = self.stage.export_state(self.averaged)
        return {name: whole(tensor) for name, tensor in state.items()}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Everything a checkpoint holds, named `player.key` and `player.parameter.key`.

        Sharded tensors are made whole, so then all processes must call. The optimizers' settings
        are left out: they follow from the config and the step.
        """
        weights: dict[str, Tensor] = {}
        moments: dict[str, Tensor] = {}
        for name, module in self.modules.items():
            weights |= {f"{name}.{key}": whole(value) for key, value in module.state_dict().items()}
            for index, entry in self.optimizers[name].state_dict()["state"].items():
                moments |= {f"{name}.{index}.{key}": whole(value) for key, value in entry.items()}
        tensors = {"weights": weights, "optimizer": moments}
        if self.ema is not None:
            averaged = self.ema.module.state_dict()
            tensors["ema"] = {key: whole(value) for key, value in averaged.items()}
        return tensors

    def restore(self, found: Checkpoint) -> None:
        """Put back what `tensors` returned."""
        for name, module in self.modules.items():
            _load(module, under(found.tensors["weights"], name))
            optimizer = self.optimizers[name]
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            state: dict[int, dict[str, Tensor]] = {}
            for key, value in under(found.tensors["optimizer"], name).items():
                index, _, entry = key.partition(".")
                parameter = parameters[int(index)]
                if value.shape == parameter.shape:  # a moment, not the count of steps
                    value = divided_like(parameter, value)
                state.setdefault(int(index), {})[entry] = value
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": state, "param_groups": groups})
        if self.ema is not None:
            _load(self.ema.module, found.tensors["ema"])


class Ema:
    """An averaged copy of a module: parameters that learn are averaged, all else is copied.

    Buffers are averages already (an EMA codebook, batch-norm statistics) or constants. Frozen
    parameters must keep their bits: tokens carry a fingerprint of their codec. torch's own
    AveragedModel averages frozen parameters too, which turns -0 into 0, and renames the state.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.module = copy.deepcopy(module).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, module: nn.Module, step: int) -> None:
        """Move towards `module` after optimizer step `step` (from 1).

        The decay starts low, (1 + n) / (10 + n), so that the random start is forgotten within the
        first steps instead of after 1 / (1 - decay) of them.
        """
        decay = min(self.decay, (1 + step) / (10 + step))
        pairs = list(zip(self.module.parameters(), module.parameters(), strict=True))
        learning = [(own, new.detach()) for own, new in pairs if new.requires_grad]
        if learning:
            averaged, current = zip(*learning, strict=True)
            torch._foreach_lerp_(averaged, current, 1.0 - decay)
        buffers = zip(self.module.buffers(), module.buffers(), strict=True)
        for copied, source in (*(pair for pair in pairs if not pair[1].requires_grad), *buffers):
            copied.copy_(source)


def shard(
    module: nn.Module, units: Iterable[nn.Module], device: str, methods: Sequence[str] = ()
) -> None:
    """Divide a module's parameters over all processes, in place.

    units: parts that are gathered one at a time when they run; the rest is gathered at once.
    methods: entry points of the module besides `forward`.
    """
    from torch.distributed import get_world_size
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    # It warns that a part's result must not be changed in place; no block does that.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(device, (get_world_size(),))
    for unit in units:
        fully_shard(unit, mesh=mesh)
    fully_shard(module, mesh=mesh)
    for method in methods:
        register_fsdp_forward_method(module, method)


def whole(tensor: Tensor) -> Tensor:
    """A divided tensor as a whole, in every process (all must call); others as they are."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def divided_like(target: Any, value: Tensor) -> Tensor:
    """A whole tensor, divided as `target` is (all processes must call)."""
    if not hasattr(target, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(target.device), target.device_mesh, target.placements)


def _load(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load whole tensors into a module that may be sharded."""
    own = module.state_dict()
    module.load_state_dict({key: divided_like(own.get(key), t) for key, t in state.items()})
