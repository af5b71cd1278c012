"""Diffsound with rows noised one after another."""

from __future__ import annotations

import pytest
import torch

from diffsound.decoder.build import build_decoder
from diffsound.decoder.config import DiffsoundConfig, LossConfig, ScheduleConfig
from diffsound.decoder.contract import Known, SamplingSettings
from diffsound.errors import InputError
from diffsound.text.features import TextFeatures

ROWS, COLUMNS, CODES = 3, 5, 8


@pytest.fixture(scope="module")
def decoder() -> torch.nn.Module:
    config = DiffsoundConfig.tiny(ROWS, CODES).model_copy(
        update={
            "schedule": ScheduleConfig(transition="mask", row_order=1.0),
            "loss": LossConfig(variant="simplified"),
        }
    )
    torch.manual_seed(0)
    return build_decoder(config)


def text(count: int) -> TextFeatures:
    features = torch.randn(count, 4, 16, generator=torch.Generator().manual_seed(1))
    return TextFeatures(features, torch.ones(count, 4, dtype=torch.bool), features.mean(1))


def generators(count: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in range(count)]


def test_loss_has_a_gradient(decoder: torch.nn.Module) -> None:
    tokens = torch.randint(CODES, (4, ROWS, COLUMNS))
    loss = decoder.loss(tokens, text(4), torch.Generator().manual_seed(0)).loss
    loss.backward()
    assert torch.isfinite(loss)
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in decoder.parameters())


def test_the_first_row_is_drawn_before_the_last(decoder: torch.nn.Module) -> None:
    masked: list[list[int]] = []
    decoder.generate(
        text(2),
        (ROWS, COLUMNS),
        generators(2),
        callback=lambda done, total, tokens: masked.append(
            (tokens == CODES).sum(dim=(0, 2)).tolist()
        ),
    )
    half = masked[len(masked) // 2 - 1]
    assert half[0] == 0, "the coarse row is complete half-way"
    assert half[-1] == 2 * COLUMNS, "the fine row has not begun"
    assert sum(masked[-1]) == 0


def test_alone_and_in_a_batch(decoder: torch.nn.Module) -> None:
    together = decoder.generate(text(3), (ROWS, COLUMNS), generators(3))
    alone = decoder.generate(text(3)[1:2], (ROWS, COLUMNS), generators(2)[1:])
    assert torch.equal(together[1:2], alone)


def test_known_cells_and_a_later_start(decoder: torch.nn.Module) -> None:
    tokens = torch.randint(CODES, (2, ROWS, COLUMNS))
    keep = torch.zeros_like(tokens, dtype=torch.bool)
    keep[:, :, 0] = True
    drawn = decoder.generate(
        text(2), (ROWS, COLUMNS), generators(2), known=Known(tokens, keep, start_step=5)
    )
    # At half time the coarse row has not been noised at all.
    assert torch.equal(drawn[:, 0], tokens[:, 0])
    assert torch.equal(drawn[:, :, 0], tokens[:, :, 0])


def test_other_samplers_are_refused(decoder: torch.nn.Module) -> None:
    with pytest.raises(InputError, match="one after another"):
        decoder.generate(
            text(1), (ROWS, COLUMNS), generators(1), SamplingSettings(sampler="confidence")
        )


def test_the_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="simplified"):
        DiffsoundConfig(schedule=ScheduleConfig(row_order=1.0))
