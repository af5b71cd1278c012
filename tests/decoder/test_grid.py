"""Grids to sequences and back, against the published order and an obvious loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffsound.decoder import layers as grids

GOLDEN = Path(__file__).parent / "golden" / "permuter_5x53.npz"


def test_flatten_is_the_published_order() -> None:
    golden = np.load(GOLDEN)
    cells = torch.arange(5 * 53).view(5, 53)  # the published indices are row-major
    assert grids.flatten(cells).tolist() == golden["out/forward"].tolist()
    places = grids.unflatten(torch.arange(5 * 53), rows=5)
    assert places.flatten().tolist() == golden["out/backward"].tolist()


def test_flatten_is_time_major() -> None:
    grid = torch.arange(6).view(2, 3)
    flat = grids.flatten(grid)
    for row in range(2):
        for column in range(3):
            assert flat[column * 2 + row] == grid[row, column]


@given(rows=st.integers(1, 6), columns=st.integers(1, 9), batch=st.integers(1, 3))
def test_orders_are_inverted(rows: int, columns: int, batch: int) -> None:
    grid = torch.arange(batch * rows * columns).view(batch, rows, columns)
    assert torch.equal(grids.unflatten(grids.flatten(grid), rows), grid)
    assert torch.equal(grids.undelay(grids.delay(grid, -1)), grid)


@given(rows=st.integers(1, 5), columns=st.integers(1, 7))
def test_delay_puts_cell_r_c_at_step_c_plus_r(rows: int, columns: int) -> None:
    grid = torch.arange(rows * columns).view(rows, columns)
    steps = grids.delay(grid, -1)
    assert steps.shape == (columns + rows - 1, rows)
    for step in range(columns + rows - 1):
        for row in range(rows):
            column = step - row
            expected = grid[row, column] if 0 <= column < columns else -1
            assert steps[step, row] == expected
