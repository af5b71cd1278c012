"""Rows noised one after another: their times, and a chain that still recovers the data."""

from __future__ import annotations

import pytest
import torch

from diffsound.decoder.diffusion.loss import rows_in_turn
from diffsound.decoder.diffusion.process import in_turn, linear_schedule, row_times
from diffsound.decoder.diffusion.samplers import ancestral, timesteps_for

STEPS = 20


@pytest.mark.parametrize(
    "windows",
    [in_turn(shares) for shares in ([1], [3, 1], [1, 1, 1], [40, 20, 10, 5, 5, 1, 1])]
    + [in_turn([3, 2, 1], [1, 2, 4])],
)
def test_times(windows: torch.Tensor) -> None:
    times = row_times(torch.arange(STEPS + 1), windows, STEPS)
    assert times.shape == (STEPS + 1, len(windows))
    assert (times[0] == 0).all()
    assert (times[-1] == STEPS).all()
    assert (times.diff(dim=0) >= 0).all()
    # Later rows are never cleaner than earlier ones.
    assert (times.diff(dim=1) >= 0).all()


def test_rows_in_turn_never_overlap() -> None:
    windows = in_turn([10, 6, 4])
    times = row_times(torch.arange(STEPS + 1), windows, STEPS)
    assert ((times > 0) & (times < STEPS)).sum(1).max() == 1
    assert times[10].tolist() == [0, STEPS, STEPS], "the first row has the chain's first half"
    assert times[4].tolist() == [0, 0, STEPS]


def test_rows_of_one_turn_share_their_times() -> None:
    windows = in_turn([10, 6, 4], [1, 3, 2])
    assert windows.shape == (6, 2)
    times = row_times(torch.arange(STEPS + 1), windows, STEPS)
    assert (times[:, 1:4] == times[:, 1:2]).all()
    assert times[10].tolist() == [0, *[STEPS] * 5]
    assert times[4].tolist() == [0, 0, 0, 0, STEPS, STEPS]


def test_the_row_whose_turn_it_is() -> None:
    windows = in_turn([10, 6, 4])
    times = row_times(torch.tensor([20, 11, 10, 5, 4, 1]), windows, STEPS)
    rows, ahead = rows_in_turn(times, windows, 1)
    assert rows[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert ahead[:, 0].tolist() == [0] * 6
    assert rows[:4, 1].tolist() == [1, 1, 2, 2]
    assert ahead[:, 1].tolist() == [1, 1, 1, 1, -2, -2], "after the last turn there is none"


def test_a_few_rows_stand_for_a_large_turn() -> None:
    windows = in_turn([10, 6, 4], [1, 5, 2])
    times = row_times(torch.full((200,), 8), windows, STEPS)  # in the second turn
    rows, ahead = rows_in_turn(times, windows, 3, torch.Generator().manual_seed(0))
    assert rows.shape == (200, 4)
    assert (ahead == torch.tensor([0, 0, 0, 1])).all()
    assert all(len(set(item.tolist())) == 4 for item in rows), "no row twice"
    counts = torch.bincount(rows[:, :3].flatten(), minlength=6)
    assert counts[0] == 0
    assert counts[1:].min() > 80, "each of the five rows is asked about alike"


@pytest.mark.parametrize("transition", ["mask", "mask_uniform", "uniform"])
def test_the_chain_draws_the_second_row_given_the_first(
    transition: str,
) -> None:
    """Two rows that must be equal, first row biased: a denoiser that knows it recovers both.

    The true p(x_0 | x_t) of this toy depends on both rows; it is computed by enumeration.
    """
    windows = in_turn([3, 2])
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

    def predict(tokens: torch.Tensor, t: int, rows: torch.Tensor) -> torch.Tensor:
        first, second = row_times(t, windows, STEPS).tolist()
        joint = prior * evidence(tokens[:, 0, 0], first) * evidence(tokens[:, 1, 0], second)
        return joint.clamp_min(1e-30).log()[:, None, None].expand(-1, len(rows), 1, -1)

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
        cell_times=lambda t: row_times(t, windows, STEPS),
    )
    assert (drawn[:, 0] == drawn[:, 1]).float().mean() > 0.97
    shares = torch.bincount(drawn[:, 0, 0], minlength=codes) / count
    assert (shares - prior).abs().max() < 0.03


def test_a_turn_without_a_share_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        in_turn([1.0, 0.0])
