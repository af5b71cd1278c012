"""Layouts, straight-through gradients and the two codebook terms."""

from __future__ import annotations

import math

import pytest
import torch

from diffsound.codec.config import QuantizerConfig
from diffsound.codec.quantizer import build_quantizer, codebook_health

LAYOUTS = ("shared", "per_row", "product", "residual")
ROWS = 4


def make(layout: str, **changes: object) -> QuantizerConfig:
    base: dict[str, object] = {"layout": layout, "codebook_size": 6, "code_dim": 3}
    if layout in ("product", "residual"):
        base["rows"] = ROWS
    return QuantizerConfig.model_validate(base | changes)


def latent_for(layout: str, batch: int = 2, columns: int = 5) -> torch.Tensor:
    return torch.randn(batch, 1 if layout == "residual" else ROWS, 3, columns)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("update", ["gradient", "ema"])
def test_lookup_of_the_tokens_gives_the_emitted_codes(layout: str, update: str) -> None:
    quantizer = build_quantizer(make(layout, update=update), ROWS)
    latent = latent_for(layout)
    quantizer(latent)  # places the codes of the EMA variant
    quantizer.eval()
    result = quantizer(latent)
    assert result.tokens.shape == (2, ROWS, 5)
    assert result.codes.shape == latent.shape
    torch.testing.assert_close(quantizer.lookup(result.tokens), result.codes)


@pytest.mark.parametrize("layout", ["shared", "per_row", "product"])
def test_every_cell_has_the_nearest_code_of_its_row(layout: str) -> None:
    quantizer = build_quantizer(make(layout), ROWS)
    torch.nn.init.normal_(quantizer.codebooks.codes)
    latent = latent_for(layout)
    tokens = quantizer(latent).tokens
    for item in range(2):
        for row in range(ROWS):
            codes = quantizer.codebooks.codes[0 if layout == "shared" else row]
            for column in range(5):
                distance = (latent[item, row, :, column] - codes).norm(dim=1)
                assert tokens[item, row, column] == distance.argmin()


def test_residual_stages_code_what_is_left() -> None:
    quantizer = build_quantizer(make("residual"), ROWS)
    for stage in quantizer.stages:
        torch.nn.init.normal_(stage.codes)
    latent = latent_for("residual")
    tokens = quantizer(latent).tokens
    for item in range(2):
        for column in range(5):
            left = latent[item, 0, :, column].clone()
            for row, stage in enumerate(quantizer.stages):
                choice = (left - stage.codes[0]).norm(dim=1).argmin()
                assert tokens[item, row, column] == choice
                left -= stage.codes[0, choice]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_straight_through_passes_the_gradient_unchanged(layout: str) -> None:
    quantizer = build_quantizer(make(layout), ROWS)
    latent = latent_for(layout).requires_grad_()
    wanted = torch.randn_like(latent)
    (quantizer(latent).codes * wanted).sum().backward()
    torch.testing.assert_close(latent.grad, wanted)
    assert all(parameter.grad is None for parameter in quantizer.parameters())


@pytest.mark.parametrize("layout", ["shared", "product"])
def test_each_term_moves_only_its_side(layout: str) -> None:
    quantizer = build_quantizer(make(layout), ROWS)
    torch.nn.init.normal_(quantizer.codebooks.codes)
    latent = latent_for(layout).requires_grad_()
    codes = quantizer.codebooks.codes

    result = quantizer(latent)
    gap = quantizer.lookup(result.tokens).detach() - latent.detach()
    torch.testing.assert_close(result.codebook_loss.detach(), gap.square().mean())
    torch.testing.assert_close(result.commitment_loss.detach(), gap.square().mean())

    (by_commitment,) = torch.autograd.grad(result.commitment_loss, latent, retain_graph=True)
    torch.testing.assert_close(by_commitment, -2 * gap / gap.numel())
    assert torch.autograd.grad(result.commitment_loss, codes, allow_unused=True) == (None,)

    result = quantizer(latent)
    (by_codebook,) = torch.autograd.grad(result.codebook_loss, codes, retain_graph=True)
    expected = torch.zeros_like(codes)
    for item, row, column in torch.cartesian_prod(
        torch.arange(2), torch.arange(ROWS), torch.arange(5)
    ):
        book = 0 if layout == "shared" else row
        choice = result.tokens[item, row, column]
        expected[book, choice] += 2 * gap[item, row, :, column] / gap.numel()
    torch.testing.assert_close(by_codebook, expected)
    assert torch.autograd.grad(result.codebook_loss, latent, allow_unused=True) == (None,)


def test_health_of_an_even_and_of_a_collapsed_row() -> None:
    tokens = torch.stack([torch.arange(8).repeat(2), torch.full((16,), 3)])[None]
    health = codebook_health(tokens, codebook_size=16)
    torch.testing.assert_close(health.perplexity, torch.tensor([8.0, 1.0]))
    torch.testing.assert_close(health.used, torch.tensor([8 / 16, 1 / 16]))


def test_health_is_the_entropy_of_the_frequencies() -> None:
    health = codebook_health(torch.tensor([[[0, 0, 0, 1]]]), codebook_size=2)
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert float(health.perplexity) == pytest.approx(math.exp(entropy))
