"""What a training step of the small decoder costs beyond its own matrix products.

    OMP_NUM_THREADS=1 python benchmarks/train_step.py [--batch 32] [--rounds 8] [--config FILE]

Three things take turns, so that a busy machine disturbs their ratios less: the whole step of the
loop (data, text dropout, forward, backward, clipping, AdamW, EMA), its forward and backward pass
alone, and the matrix products of those alone. Printed are the step over its products (at most 1.3)
and the share of a step that is neither forward nor backward (at most 10 %). Times are processor
time, so one thread only.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from common import CONFIGS, check, synthetic_data, untrained_codec
from diffsound.config import load_config
from diffsound.data.shards import PreparedData
from diffsound.training.decoder import DecoderRun
from diffsound.training.engine import make_accelerator
from diffsound.training.loop import Trainer
from diffsound.training.runs import build_stage
from diffsound.training.stage import Moment

aten = torch.ops.aten
Pair = tuple[tuple[int, ...], tuple[int, ...]]


class Products(TorchDispatchMode):
    """Notes the shapes of every matrix product that runs under it."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs: list[Pair] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.overloadpacket
        if name in (aten.mm, aten.bmm):
            self.pairs.append((tuple(args[0].shape), tuple(args[1].shape)))
        elif name in (aten.addmm, aten.baddbmm):
            self.pairs.append((tuple(args[1].shape), tuple(args[2].shape)))
        elif name is aten._scaled_dot_product_flash_attention_for_cpu:
            self._attention(args[0], args[1], 1)
        elif name is aten._scaled_dot_product_flash_attention_for_cpu_backward:
            # Scores and their gradient (q·kᵀ shapes), then the gradients of q, k and v.
            self._attention(args[1], args[2], 2)
            self.pairs.append(self.pairs[-1])
        return function(*args, **(kwargs or {}))

    def _attention(self, q: torch.Tensor, k: torch.Tensor, times: int) -> None:
        batch, heads, queries, head = q.shape
        keys = k.shape[2]
        scores = ((batch * heads, queries, head), (batch * heads, head, keys))
        values = ((batch * heads, queries, keys), (batch * heads, keys, head))
        self.pairs += [scores, values] * times


def replay(pairs: list[Pair]) -> Callable[[], None]:
    """The products alone; each on tensors of its own, as in a real step."""
    tensors = [(torch.randn(a), torch.randn(b)) for a, b in pairs]

    def run() -> None:
        for a, b in tensors:
            torch.matmul(a, b)

    return run


def spent(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default=str(CONFIGS / "small" / "decoder.yaml"))
    parser.add_argument("--batch", type=int, help="clips a step; the config's own by default")
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        data = PreparedData.open(synthetic_data(Path(folder) / "data"))
        codec = untrained_codec(Path(folder) / "codec")
        changes = [f"codec={codec}", "grids.wider=0", "samples.clips=0"]
        changes += [] if options.batch is None else [f"train.batch_size={options.batch}"]
        config = load_config(DecoderRun, options.config, changes)
        config = config.completed(data)
        accelerator = make_accelerator(config.train)
        stage = build_stage(config, data, accelerator)
        trainer = Trainer(stage, config.train, Path(folder), accelerator)
        batches = trainer._batches()
        batch = next(batches)

        def passes() -> None:
            for turn in stage.turns(batch, Moment.at(0, 0, 0, 0, 0)):
                turn.loss.backward()
            stage.product.zero_grad()

        with Products() as products:
            passes()
        multiply = replay(products.pairs)
        works = {
            "step": lambda: trainer._step(batches),
            "passes": passes,
            "products": multiply,
        }
        for work in works.values():
            work()
        times: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(options.rounds):
            for name, work in works.items():
                times[name].append(spent(work))
    step, alone, matrix = (median(times[name]) for name in works)
    operations = sum(2 * a[0] * torch.Size(a[1:]).numel() * b[-1] for a, b in products.pairs)
    print(f"batch {tuple(batch['tokens'].shape)}, {operations / 1e9:.1f} GFLOP in products")
    print(f"step / forward and backward: {step / alone:.2f}")
    good = [
        check("step / matrix products", step / matrix, at_most=1.3),
        check("share of the loop in a step", 1 - alone / step, at_most=0.1, form=".1%"),
    ]
    raise SystemExit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
