"""Diffsound with rows noised one after another."""

from __future__ import annotations

import pytest
import torch

from diffsound.decoder import SamplingSettings, build_decoder
from diffsound.decoder.config import DiffsoundConfig, LossConfig, ScheduleConfig
from diffsound.decoder.diffsound import Diffsound
from diffsound.decoder.diffusion.process import row_times, sample_xt
from diffsound.decoder.sampling import Known
from diffsound.errors import InputError
from diffsound.text.features import TextFeatures

ROWS, COLUMNS, CODES = 3, 5, 8


SCHEDULES = {
    "in turn": ScheduleConfig(transition="mask", row_shares=(5, 3, 2)),
    "in turn, uniform noise too": ScheduleConfig(row_shares=(5, 3, 2)),
}


def build(schedule: ScheduleConfig, position: str = "cell") -> Diffsound:
    config = DiffsoundConfig.tiny(ROWS, CODES).model_copy(
        update={
            "schedule": schedule,
            "loss": LossConfig(variant="simplified"),
            "position": position,
            "code_width": 4 if position == "column" else None,
        }
    )
    torch.manual_seed(0)
    decoder = build_decoder(config)
    assert isinstance(decoder, Diffsound)
    return decoder


@pytest.fixture(scope="module", params=SCHEDULES)
def decoder(request: pytest.FixtureRequest) -> torch.nn.Module:
    return build(SCHEDULES[request.param])


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
    if decoder.config.schedule.transition == "mask":
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


def test_impossible_configs_are_refused() -> None:
    with pytest.raises(ValueError, match="simplified"):
        DiffsoundConfig(schedule=ScheduleConfig(row_shares=(1, 2, 3, 4, 5)))
    with pytest.raises(ValueError, match="2 shares for 5 rows"):
        DiffsoundConfig(
            schedule=ScheduleConfig(row_shares=(1, 2)), loss=LossConfig(variant="simplified")
        )


def test_turns_must_hold_all_rows_and_have_a_share_each() -> None:
    with pytest.raises(ValueError, match="3 turns need as many row_shares, not 2"):
        ScheduleConfig(row_shares=(1, 2), turns=(1, 1, 1))
    with pytest.raises(ValueError, match="turns has 4 rows, the decoder 5"):
        DiffsoundConfig(
            schedule=ScheduleConfig(row_shares=(1, 2), turns=(1, 3)),
            loss=LossConfig(variant="simplified"),
        )


def test_an_older_config_is_read_if_its_order_of_rows_meant_nothing() -> None:
    assert ScheduleConfig.model_validate({"row_order": 0.0}) == ScheduleConfig()
    with pytest.raises(ValueError, match="row_order"):
        ScheduleConfig.model_validate({"row_order": 1.0})


@pytest.mark.parametrize("position", ["cell", "column"])
def test_the_loss_asks_about_the_row_in_turn_and_the_next(position: str) -> None:
    """Against the obvious form: all logits, then the cells of two rows, item by item."""
    decoder = build(SCHEDULES["in turn"], position)
    tokens = torch.randint(CODES, (10, ROWS, COLUMNS))
    made = decoder.loss(tokens, text(10), torch.Generator().manual_seed(3))

    generator = torch.Generator().manual_seed(3)
    t, _ = decoder._draw_times(10, generator)
    times = row_times(t, decoder.windows, 10)
    noisy = sample_xt(tokens, times, decoder.schedule, generator)
    nll = -decoder(noisy, t, text(10)).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    for item in range(10):
        clean = int((times[item] == 0).sum())
        total, weight = torch.zeros(()), 0.0
        for row, share in ((clean, 1.0), (clean + 1, 0.25)):
            masked = noisy[item, row] == CODES if row < ROWS else torch.zeros(COLUMNS).bool()
            if masked.any():
                total, weight = total + share * nll[item, row][masked].mean(), weight + share
        expected = total / weight if weight else torch.zeros(())
        torch.testing.assert_close(made.per_item[item], expected.detach())


def test_guidance_of_a_part_of_the_chain(decoder: torch.nn.Module) -> None:
    """With share 0 it is no guidance, with share 1 all of it, between them neither."""
    negative = text(3)[1:]

    def drawn(**settings: float) -> torch.Tensor:
        made = SamplingSettings(**settings)  # type: ignore[arg-type]
        return decoder.generate(
            text(2), (ROWS, 40), generators(2), made, negative=negative if settings else None
        )

    plain, none = drawn(), drawn(guidance_scale=5.0, guided_share=0.0)
    whole, half = drawn(guidance_scale=5.0), drawn(guidance_scale=5.0, guided_share=0.5)
    assert torch.equal(plain, none)
    assert not torch.equal(half, plain)
    assert not torch.equal(half, whole)
    # Half of the chain draws the first row, and it is guided in both.
    assert torch.equal(half[:, 0], whole[:, 0])
