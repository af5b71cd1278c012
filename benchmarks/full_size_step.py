"""One reverse step of the full-size Diffsound (`paper` preset, random weights, batch 1).

    OMP_NUM_THREADS=2 python benchmarks/full_size_step.py [--rounds 5] [--json out.json]

On a machine that is busy with other work: OMP_NUM_THREADS=1 and --cpu-time.

All figures are ratios of times taken in turns in one run, so that a busy machine disturbs them
less. Compared are: our step; the step's own matrix products alone; the same network computed as
the published code does (text keys and AdaLN at every step, separate q, k, v, attention matrices
in memory); the sampler around the network; the step in int8.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from diffsound.decoder.config import DiffsoundConfig
from diffsound.decoder.diffsound import Diffsound, Predictor
from diffsound.decoder.diffusion.samplers import ancestral
from diffsound.decoder.layers import split_heads
from diffsound.decoder.sampling import TokenRequest
from diffsound.model.backends import quantize_int8
from diffsound.text.features import TextFeatures

TEXT_TOKENS = 77


def products(model: Diffsound) -> Callable[[], None]:
    """The matrix products of one step and nothing else, by torch.mm and torch.bmm."""
    config = model.config
    cells, head = config.rows * config.columns, config.width // config.heads
    pairs = []
    for block in model.transformer.blocks:
        for layer in (
            block.self_attention.qkv,
            block.self_attention.out,
            block.cross_attention.query,
            block.cross_attention.out,
            block.mlp.up,
            block.mlp.down,
        ):
            pairs.append((torch.randn(cells, layer.in_features), layer.weight.t()))
    pairs.append((torch.randn(cells, config.width), model.transformer.logits.weight.t()))
    q = torch.randn(config.heads, cells, head)
    attended = [
        (torch.randn(config.heads, keys, head), torch.randn(config.heads, cells, keys))
        for keys in (cells, TEXT_TOKENS)
    ]

    def run() -> None:
        for x, weight in pairs:
            torch.mm(x, weight)
        for _ in range(config.layers):
            for keys, scores in attended:
                torch.bmm(q, keys.transpose(1, 2))
                torch.bmm(scores, keys)

    return run


def as_published(model: Diffsound, tokens: Tensor, text: TextFeatures, t: Tensor) -> Tensor:
    """The same logits with everything recomputed in every step, as the published code does."""
    network, heads = model.transformer, model.config.heads
    features = F.normalize(text.features, dim=-1)

    def separately(linear: torch.nn.Linear, x: Tensor, parts: int) -> list[Tensor]:
        weights, biases = linear.weight.chunk(parts), linear.bias.chunk(parts)
        return [F.linear(x, w, b) for w, b in zip(weights, biases, strict=True)]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (split_heads(part, heads) for part in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (1 / math.sqrt(q.shape[-1]))
        return (scores.softmax(-1) @ v).transpose(1, 2).contiguous().flatten(2)

    def adaptive(norm: torch.nn.Module, x: Tensor) -> Tensor:
        scale, shift = norm.linear(F.silu(norm.timestep(t - 1))).unsqueeze(1).chunk(2, dim=2)
        return F.layer_norm(x, (x.shape[-1],)) * (1 + scale) + shift

    x = network._embed(tokens)
    for block in network.blocks:
        own, cross = block.self_attention, block.cross_attention
        h = adaptive(block.norm_self, x)
        x = x + own.out(attend(*separately(own.qkv, h, 3)))
        h = adaptive(block.norm_cross, x)
        x = x + cross.out(attend(cross.query(h), *separately(cross.key_value, features, 2)))
        h = block.mlp.up(block.norm_mlp(x))
        x = x + block.mlp.down(h * torch.sigmoid(1.702 * h))
    logits = network.logits(network.norm(x))
    return logits.unflatten(1, (-1, model.rows)).transpose(1, 2)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=["paper", "tiny"], default="paper")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu_time else time.perf_counter

    def seconds(function: Callable[[], object]) -> float:
        started = clock()
        function()
        return clock() - started

    torch.manual_seed(0)

    # tiny only shows that it works: its figures say nothing.
    model = Diffsound(getattr(DiffsoundConfig, arguments.preset)()).eval()
    config, steps = model.config, model.config.timesteps
    features = torch.randn(1, TEXT_TOKENS, config.text_dim)
    mask = torch.ones(1, TEXT_TOKENS, dtype=torch.bool)
    text = TextFeatures(features, mask, features.mean(1))
    tokens = torch.randint(config.codebook_size + 1, (1, config.rows, config.columns))
    t = torch.tensor([steps // 2])
    predict = Predictor(model.transformer, TokenRequest(text, tokens.shape[1:], []))
    predict.prepare([steps // 2])
    logits = predict(tokens, steps // 2)

    def outside() -> None:
        """Ten steps of the sampler with a network that costs nothing."""
        generators = [torch.Generator().manual_seed(0)]
        chain = list(range(10, -1, -1))
        ancestral(lambda *_: logits, model.schedule, tokens, chain, generators, truncation=0.85)

    alone = products(model)
    published = as_published(model, tokens, text, t)
    difference = (published - logits).abs().max().item()
    times: dict[str, list[float]] = {
        "step": [],
        "its products alone": [],
        "as published": [],
        "outside the network": [],
    }
    for _ in range(arguments.rounds):
        times["step"].append(seconds(lambda: predict(tokens, steps // 2)))
        times["its products alone"].append(seconds(alone))
        times["as published"].append(seconds(lambda: as_published(model, tokens, text, t)))
        times["outside the network"].append(seconds(outside) / 10)
    reference = predict(tokens, steps // 2)
    quantize_int8(model)
    low = predict(tokens, steps // 2)
    times["step, int8"] = [
        seconds(lambda: predict(tokens, steps // 2)) for _ in range(arguments.rounds + 1)
    ][1:]

    best = {name: min(values) for name, values in times.items()}
    print(f"{torch.get_num_threads()} threads, {arguments.rounds} rounds, seconds (best, median)")
    for name, values in times.items():
        print(f"  {name:24} {best[name]:8.4f} {median(values):8.4f}")
    report = {
        "step / its products": best["step"] / best["its products alone"],
        "outside the network / step": best["outside the network"] / best["step"],
        "as published / step": best["as published"] / best["step"],
        "as published / step in int8": best["as published"] / best["step, int8"],
        "largest difference to as published": difference,
        "int8 logit error / logit spread": ((low - reference).std() / reference.std()).item(),
        "int8 same most likely token": (low.argmax(-1) == reference.argmax(-1))
        .float()
        .mean()
        .item(),
    }
    for name, value in report.items():
        print(f"{name:36} {value:10.4g}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"ratios": report, "seconds": best}, indent=2))


if __name__ == "__main__":
    main()
