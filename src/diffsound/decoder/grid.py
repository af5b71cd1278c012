"""Token grids to sequences and back: the one place where the order of cells is fixed.

A grid is [..., F', L'] (rows of frequency, columns of time). Its sequence is time-major, as
published: cell (row, column) is at i = column * F' + row.
"""

from __future__ import annotations

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
