"""Device, precision and processes, from Accelerate."""

from __future__ import annotations

import subprocess
import sys

import torch

from diffsound.errors import ConfigError, MissingExtraError
from diffsound.training.config import TrainConfig

try:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedDataParallelKwargs, broadcast
except ImportError:
    raise MissingExtraError("accelerate", "train") from None

__all__ = ["Accelerator", "broadcast", "make_accelerator"]

_PRODUCT = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"


def make_accelerator(config: TrainConfig) -> Accelerator:
    """As launched: `accelerate launch`, `torchrun`, or neither."""
    precision = "no" if config.precision == "fp32" else config.precision
    if precision == "bf16" and not torch.accelerator.is_available():
        _check_bf16_on_cpu()
    # Buffers keep themselves alike (codebooks are summed over processes), and copying them between
    # two passes of a discriminator would break the first one's gradients.
    kwargs = DistributedDataParallelKwargs(broadcast_buffers=False)
    # Accelerate keeps its settings for the whole process; another run in it may want others.
    AcceleratorState._reset_state()
    try:
        return Accelerator(
            mixed_precision=precision,
            gradient_accumulation_steps=config.accumulation,
            kwargs_handlers=[kwargs],
        )
    except ValueError as error:  # fp16 without a GPU, bf16 on one that has none
        raise ConfigError(f"train.precision={config.precision} cannot be had: {error}") from error


def _check_bf16_on_cpu() -> None:
    """Refuse bf16 where a product of it ends the process.

    Some virtual machines name matrix instructions (AMX) without saying how large their tiles are,
    and oneDNN takes the name's word. Only another process can try that and live.
    """
    tried = subprocess.run([sys.executable, "-c", _PRODUCT], capture_output=True, check=False)
    if tried.returncode:
        raise ConfigError(
            "train.precision=bf16 cannot be had: this processor cannot do what it says it can; "
            "take fp32, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment"
        )
