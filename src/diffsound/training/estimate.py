"""A dry run: how large a stage is, what a step costs, how long the whole would take."""

from __future__ import annotations

import resource
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from diffsound.config import load_config
from diffsound.data.shards import PreparedData
from diffsound.training.engine import make_accelerator
from diffsound.training.loop import Trainer
from diffsound.training.registry import stage_spec
from diffsound.training.runs import build_stage

WARM_UP, MEASURED = 2, 5


def estimate(
    kind: str, config_path: str | Path, data: str | Path, overrides: Iterable[str] = ()
) -> str:
    """Take a few real steps without a run folder and say what they foretell."""
    config = load_config(stage_spec(kind).config, config_path, overrides)
    accelerator = make_accelerator(config.train)
    prepared = PreparedData.open(data)
    config = config.completed(prepared)
    stage = build_stage(config, prepared, accelerator)
    with tempfile.TemporaryDirectory() as nowhere:
        trainer = Trainer(stage, config.train, Path(nowhere), accelerator)
        seconds = trainer.time_steps(WARM_UP, MEASURED)
    lines = []
    weights = 0
    for name, player in stage.players.items():
        count = sum(parameter.numel() for parameter in player.module.parameters())
        weights += count
        lines.append(f"{name:<16}{count:>14,} parameters")
    # Per weight: itself, its gradient, two moments; the product's average once more.
    averaged = sum(p.numel() for p in stage.product.parameters()) if trainer.team.ema else 0
    state = 4 * (4 * weights + averaged)
    lines.append(f"{'state':<16}{state / 1e6:>14,.0f} MB (weights, gradients, moments, average)")
    lines.append(f"{'peak memory':<16}{_peak_bytes() / 1e6:>14,.0f} MB (this process, measured)")
    train = config.train
    clips = train.batch_size * train.accumulation * accelerator.num_processes
    lines.append(f"{'step':<16}{seconds:>14.3f} s ({clips / seconds:.1f} clips/s)")
    steps = trainer.span.steps
    whole = seconds * steps if steps else float("inf")
    if train.max_minutes:
        whole = min(whole, 60 * train.max_minutes)
    shown = f"{whole / 3600:.2f} h"
    lines.append(f"{'whole run':<16}{shown:>16} ({round(whole / seconds):,} steps)")
    return "\n".join(lines)


def _peak_bytes() -> int:
    import torch

    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
