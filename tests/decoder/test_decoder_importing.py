"""Published checkpoints: the same logits as the published networks.

The AR decoder is compared with recorded numbers of the published code; Diffsound with a forward
pass written here a second time, plainly, over the published key names.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import published
from diffsound.decoder import SamplingSettings, build_decoder
from diffsound.decoder import layers as grids
from diffsound.decoder.importing import ar_from_published, diffsound_from_published
from diffsound.errors import BundleError
from diffsound.text.features import TextFeatures

GOLDEN = Path(__file__).parent / "golden" / "ar_tiny.npz"
LAYERS, HEADS, WIDTH, TEXT, CODES, ROWS, COLUMNS, STEPS = 2, 4, 16, 12, 6, 3, 5, 8


def published_diffsound() -> dict[str, Tensor]:
    return published.diffsound(LAYERS, WIDTH, TEXT, CODES, ROWS, COLUMNS, STEPS)


def published_forward(w: dict[str, Tensor], tokens: Tensor, text: Tensor, t: int) -> Tensor:
    """tokens [N], text [S, D] -> logits [N, K]; t counts from 0 here, as published."""
    w = {key.removeprefix("transformer."): value for key, value in w.items()}

    def dense(name: str, x: Tensor) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def normal(x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(((x - mean) ** 2).mean(-1, keepdim=True) + 1e-5)

    def adaptive(name: str, x: Tensor) -> Tensor:
        vector = w[f"{name}.emb.weight"][t]
        out = dense(f"{name}.linear", vector * torch.sigmoid(vector))
        return normal(x) * (1 + out[:WIDTH]) + out[WIDTH:]

    def attention(name: str, x: Tensor, source: Tensor) -> Tensor:
        q, k, v = dense(f"{name}.query", x), dense(f"{name}.key", source), None
        v = dense(f"{name}.value", source)
        size, outs = WIDTH // HEADS, []
        for head in range(HEADS):
            part = slice(head * size, (head + 1) * size)
            scores = q[:, part] @ k[:, part].T / math.sqrt(size)
            outs.append(scores.softmax(-1) @ v[:, part])
        return dense(f"{name}.proj", torch.cat(outs, -1))

    text = text / text.norm(dim=-1, keepdim=True)
    places = torch.arange(len(tokens))
    x = w["content_emb.emb.weight"][tokens]
    x = x + w["content_emb.height_emb.weight"][places // COLUMNS]
    x = x + w["content_emb.width_emb.weight"][places % COLUMNS]
    for i in range(LAYERS):
        block = f"blocks.{i}"
        h = adaptive(f"{block}.ln1", x)
        x = x + attention(f"{block}.attn1", h, h)
        x = x + attention(f"{block}.attn2", adaptive(f"{block}.ln1_1", x), text)
        h = normal(x) * w[f"{block}.ln2.weight"] + w[f"{block}.ln2.bias"]
        h = dense(f"{block}.mlp.0", h)
        x = x + dense(f"{block}.mlp.2", h * torch.sigmoid(1.702 * h))
    x = normal(x) * w["to_logits.0.weight"] + w["to_logits.0.bias"]
    return dense("to_logits.1", x)


def test_diffsound_gives_the_published_logits() -> None:
    weights = published_diffsound()
    config, state, settings = diffsound_from_published({"ema": weights}, heads=HEADS)
    assert (config.layers, config.width, config.text_dim) == (LAYERS, WIDTH, TEXT)
    assert (config.rows, config.columns, config.timesteps) == (ROWS, COLUMNS, STEPS)
    assert (config.codebook_size, config.position_scheme) == (CODES, "official")
    assert settings == SamplingSettings(sampler="official", truncation=0.85)
    model = build_decoder(config).eval()
    model.load_state_dict(state, strict=True)
    tokens = torch.randint(CODES + 1, (3, ROWS, COLUMNS))
    text = torch.randn(3, 4, TEXT)
    mask = torch.tensor([[True] * 4, [True, False, False, False], [True] * 4])
    features = TextFeatures(text, mask, torch.randn(3, TEXT))  # padding is attended as published
    times = [1, 5, STEPS]
    logits = model(tokens, torch.tensor(times), features)
    for item, t in enumerate(times):
        expected = published_forward(weights, grids.flatten(tokens[item]), text[item], t - 1)
        got = logits[item].transpose(0, 1).flatten(0, 1)  # in sequence order
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


def test_raw_weights_of_a_whole_training_checkpoint() -> None:
    averaged = published_diffsound()
    model = {f"transformer.{key}": value + 1 for key, value in averaged.items()}
    model |= {
        "content_codec.encoder.conv_in.weight": torch.zeros(1),
        "transformer.condition_emb.positional_embedding": torch.zeros(1),
        "transformer.log_at": torch.zeros(STEPS),
        "transformer.Lt_history": torch.arange(STEPS).float(),
        "transformer.Lt_count": torch.arange(STEPS).float(),
    }
    checkpoint: dict[str, Any] = {"model": model, "ema": averaged, "iteration": 3}
    config, state, _ = diffsound_from_published(checkpoint, heads=HEADS, ema=False)
    name = "transformer.codes.weight"
    assert torch.equal(state[name], averaged["transformer.content_emb.emb.weight"] + 1)
    assert state["times.history"].tolist() == list(range(STEPS))
    assert state["times.count"].dtype == torch.int64
    build_decoder(config).load_state_dict(state, strict=True)
    _, state, _ = diffsound_from_published(checkpoint, heads=HEADS)
    assert torch.equal(state[name], averaged["transformer.content_emb.emb.weight"])


def golden_ar() -> tuple[dict[str, Tensor], Any]:
    golden = np.load(GOLDEN)
    weights = {
        key.removeprefix("w/"): torch.from_numpy(golden[key])
        for key in golden.files
        if key.startswith("w/")
    }
    return weights, golden


@pytest.mark.parametrize("prefix", ["", "transformer.", "model.transformer."])
def test_ar_gives_the_published_logits(prefix: str) -> None:
    weights, golden = golden_ar()
    checkpoint = {prefix + key: value for key, value in weights.items()}
    config, state, settings = ar_from_published({"state_dict": checkpoint}, heads=4, rows=1)
    assert (config.layers, config.width, config.codebook_size) == (2, 32, 16)
    assert settings.top_k == 16
    model = build_decoder(config).eval()
    model.load_state_dict(state, strict=True)
    vector = torch.from_numpy(golden["in/text"])[:, :, 0]
    text = TextFeatures(vector[:, None], torch.ones(2, 1, dtype=torch.bool), vector)
    tokens = torch.from_numpy(golden["in/tokens"])
    # One more column than given: its token predicts nothing, its logits follow all nine.
    grid = torch.cat((tokens, tokens[:, :1]), dim=1)[:, None]
    logits = model(grid, text)[:, 0]
    torch.testing.assert_close(logits, torch.from_numpy(golden["out/logits"]), atol=1e-4, rtol=0)


def test_what_does_not_fit_is_named() -> None:
    weights = published_diffsound()
    missing = {k: v for k, v in weights.items() if not k.endswith("blocks.1.attn2.key.bias")}
    with pytest.raises(BundleError, match=r"no key 'transformer\.blocks\.1\.attn2\.key\.bias'"):
        diffsound_from_published({"ema": missing}, heads=HEADS)
    extra = weights | {"transformer.blocks.1.gate.weight": torch.zeros(2)}
    with pytest.raises(BundleError, match=r"'transformer\.blocks\.1\.gate\.weight'"):
        diffsound_from_published({"ema": extra}, heads=HEADS)
    wrong = weights | {"transformer.blocks.0.mlp.2.bias": torch.zeros(3)}
    with pytest.raises(BundleError, match=r"shape \(3,\), the configuration needs \(16,\)"):
        diffsound_from_published({"ema": wrong}, heads=HEADS)
    with pytest.raises(BundleError, match="ema=False"):
        diffsound_from_published({"model": weights}, heads=HEADS, ema=True)
    with pytest.raises(BundleError, match=r"content_emb\.emb\.weight"):
        diffsound_from_published({"ema": {"a": torch.zeros(1)}}, heads=HEADS)
    with pytest.raises(BundleError, match="multiple of heads"):
        diffsound_from_published({"ema": weights}, heads=5)
    ar, _ = golden_ar()
    with pytest.raises(BundleError, match="no multiple of 5 rows"):
        ar_from_published(ar, heads=4)
