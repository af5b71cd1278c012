"""Token grids to sequences and back: the one place where the order of cells is fixed.

A grid is [..., F', L'] (rows of frequency, columns of time). Its sequence is time-major, as
published: cell (row, column) is at i = column * F' + row.
"""

from __future__ import annotations

import torch
from torch import Tensor


def flatten(grid: Tensor) -> Tensor:
    """Cells in sequence order: [..., F', L'] -> [..., L' * F']."""
    return grid.transpose(-1, -2).flatten(-2)


def unflatten(sequence: Tensor, rows: int) -> Tensor:
    """The inverse of `flatten`: [..., L' * F'] -> [..., F', L']."""
    return sequence.unflatten(-1, (-1, rows)).transpose(-1, -2)


def by_column(grid: Tensor) -> Tensor:
    """One entry per column, its rows inside: [..., F', L'] -> [..., L', F']."""
    return grid.transpose(-1, -2)


def delay(grid: Tensor, blank: int | bool) -> Tensor:
    """Columns as steps, row r delayed by r: [..., F', L'] -> [..., L' + F' - 1, F'].

    Step s holds the cells (r, s - r), so the rows of one column follow each other while every step
    still draws one cell of each row. Places without a cell hold `blank`.
    """
    rows, columns = grid.shape[-2:]
    steps = grid.new_full((*grid.shape[:-2], columns + rows - 1, rows), blank)
    for row in range(rows):
        steps[..., row : row + columns, row] = grid[..., row, :]
    return steps


def undelay(steps: Tensor) -> Tensor:
    """The inverse of `delay`: [..., L' + F' - 1, F'] -> [..., F', L']."""
    count, rows = steps.shape[-2:]
    columns = count - rows + 1
    return torch.stack([steps[..., row : row + columns, row] for row in range(rows)], dim=-2)
