"""Peak memory of training the paper's decoder at batch 1, with and without gradient checkpointing.

    python benchmarks/train_memory.py [--batch 1] [--steps 2] [--plain] [--precision bf16]

One process trains the full-size Diffsound (383 M parameters, random weights) on random tokens for
a few steps of AdamW and prints the most memory it ever held (at most 16 GB), beside what weights,
gradients and moments need by themselves.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

import torch

from common import check
from diffsound.decoder import build_decoder
from diffsound.decoder.config import DiffsoundConfig
from diffsound.text.features import TextFeatures

TEXT_TOKENS = 77


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--plain", action="store_true", help="without gradient checkpointing")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    options = parser.parse_args()
    config = DiffsoundConfig.paper()
    decoder = build_decoder(config)
    decoder.transformer.gradient_checkpointing = not options.plain
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=1e-4, fused=True)
    shape = (options.batch, config.rows, config.columns)
    text = TextFeatures(
        torch.randn(options.batch, TEXT_TOKENS, config.text_dim),
        torch.ones(options.batch, TEXT_TOKENS, dtype=torch.bool),
        torch.randn(options.batch, config.text_dim),
    )
    half = options.precision == "bf16"
    seconds = []
    for _ in range(options.steps):
        started = time.perf_counter()
        tokens = torch.randint(config.codebook_size, shape)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = decoder.loss(tokens, text).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak *= 1 if sys.platform == "darwin" else 1024
    count = sum(parameter.numel() for parameter in decoder.parameters())
    print(f"{count:,} parameters, batch {options.batch}, {options.precision}")
    print(f"weights, gradients, moments {16 * count / 1e9:.2f} GB")
    print(f"step                        {min(seconds):.1f} s")
    raise SystemExit(0 if check("peak memory, GB", peak / 1e9, at_most=16.0) else 1)


if __name__ == "__main__":
    main()
