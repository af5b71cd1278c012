"""Device, precision and processes, from Accelerate."""

from __future__ import annotations

from diffsound.errors import ConfigError, MissingExtraError
from diffsound.training.config import TrainConfig

try:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedDataParallelKwargs, broadcast
except ImportError:
    raise MissingExtraError("accelerate", "train") from None

__all__ = ["Accelerator", "broadcast", "make_accelerator"]


def make_accelerator(config: TrainConfig) -> Accelerator:
    """As launched: `accelerate launch`, `torchrun`, or neither."""
    precision = "no" if config.precision == "fp32" else config.precision
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
