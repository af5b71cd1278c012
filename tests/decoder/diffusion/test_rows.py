"""Rows noised one after another: their times, and a chain that still recovers the data."""

from __future__ import annotations

import pytest
import torch

from diffsound.decoder.diffusion.rows import row_times
from diffsound.decoder.diffusion.samplers import ancestral, timesteps_for
from diffsound.decoder.diffusion.schedule import linear_schedule

STEPS = 20


@pytest.mark.parametrize("order", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_times(rows: int, order: float) -> None:
    times = row_times(torch.arange(STEPS + 1), rows, STEPS, order)
    assert times.shape == (STEPS + 1, rows)
    assert (times[0] == 0).all()
    assert (times[-1] == STEPS).all()
    assert (times.diff(dim=0) >= 0).all()
    # Later rows are never cleaner than earlier ones.
    assert (times.diff(dim=1) >= 0).all()
    if order == 0:
        assert (times == torch.arange(STEPS + 1)[:, None]).all()


def test_order_one_ends_the_last_row_where_the_first_begins() -> None:
    assert row_times(STEPS // 2, 3, STEPS, 1.0).tolist() == [0, STEPS // 2, STEPS]


@pytest.mark.parametrize("transition", ["mask", "mask_uniform", "uniform"])
def test_the_chain_draws_the_second_row_given_the_first(transition: str) -> None:
    """Two rows that must be equal, first row biased: a denoiser that knows it recovers both.

    The true p(x_0 | x_t) of this toy depends on both rows; it is computed by enumeration.
    """
    codes, prior = 3, torch.tensor([0.6, 0.3, 0.1])
    schedule = linear_schedule(STEPS, codes, transition)  # type: ignore[arg-type]

    def evidence(tokens: torch.Tensor, time: int) -> torch.Tensor:
        """q(x_t | x_0 = i) for every i: [N, K]."""
        stay, uniform, masked = (float(v) for v in schedule.cumulative(time))
        likelihood = torch.full((len(tokens), codes), uniform)
        visible = tokens < codes
        likelihood[visible, tokens[visible]] += stay
        likelihood[~visible] = masked
        return likelihood

    def predict(tokens: torch.Tensor, t: int) -> torch.Tensor:
        first, second = row_times(t, 2, STEPS, 1.0).tolist()
        joint = prior * evidence(tokens[:, 0, 0], first) * evidence(tokens[:, 1, 0], second)
        return joint.clamp_min(1e-30).log()[:, None, None].expand(-1, 2, 1, -1)

    count = 4000
    generators = [torch.Generator().manual_seed(i) for i in range(count)]
    start = torch.full((count, 2, 1), codes)
    if transition == "uniform":
        start = torch.randint(codes, (count, 2, 1), generator=torch.Generator().manual_seed(0))
    drawn = ancestral(
        predict,
        schedule,
        start,
        timesteps_for(STEPS, num_steps=10),
        generators,
        cell_times=lambda t: row_times(t, 2, STEPS, 1.0),
    )
    assert (drawn[:, 0] == drawn[:, 1]).float().mean() > 0.97
    shares = torch.bincount(drawn[:, 0, 0], minlength=codes) / count
    assert (shares - prior).abs().max() < 0.03


def test_negative_order_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        row_times(1, 2, STEPS, -1.0)
