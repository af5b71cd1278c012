"""Int8 layers: near the float ones, and in the places that count."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from diffsound.decoder import build_decoder
from diffsound.decoder.config import ARConfig, DiffsoundConfig
from diffsound.model.backends import Int8Linear, quantize_int8


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_is_near_its_original(bias: bool) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(64, 48, bias=bias)
    # Rows of very different size: one scale for all of them would lose the small ones.
    linear.weight.data *= torch.logspace(-3, 3, 48)[:, None]
    x = torch.randn(2, 9, 64)
    with torch.no_grad():
        expected, got = linear(x), Int8Linear(linear)(x)
    error = (got - expected).norm(dim=(0, 1)) / expected.norm(dim=(0, 1))
    assert error.max() < 0.03


def test_large_activations_do_not_saturate() -> None:
    linear = nn.Linear(512, 4, bias=False)
    nn.init.constant_(linear.weight, 1.0)
    x = torch.full((1, 512), 100.0)
    torch.testing.assert_close(Int8Linear(linear)(x), linear(x).detach(), rtol=0.01, atol=0)


@pytest.mark.parametrize("config", [DiffsoundConfig.tiny(), ARConfig.tiny()])
def test_a_decoder_still_generates(
    make_text: Any, make_generators: Any, config: DiffsoundConfig | ARConfig
) -> None:
    torch.manual_seed(0)
    model = build_decoder(config)
    text, tokens = make_text([2, 3]), torch.randint(8, (2, 2, 6))
    times = (torch.tensor([3, 4]),) if config.kind == "diffsound" else ()
    with torch.no_grad():
        expected = model(tokens, *times, text)
        assert quantize_int8(model) is model
        got = model(tokens, *times, text)
    assert sum(isinstance(module, Int8Linear) for module in model.modules()) >= 4 * config.layers
    assert (got - expected).abs().mean() < 0.05 * expected.std()
    out = model.generate(text, (2, 6), make_generators([0, 1]))
    assert 0 <= out.min() <= out.max() < 8
