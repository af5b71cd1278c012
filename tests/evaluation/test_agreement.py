"""The paper's order and ours: what is counted, and what is said of it."""

from __future__ import annotations

import pytest

from diffsound.evaluation.metrics import Score
from diffsound.evaluation.paper_tables import PaperTable, Row, agreement


def table(*paper: float | None, metric: str = "FID") -> PaperTable:
    rows = tuple(Row(id=f"row{n}", keys=(str(n),), paper=(v,)) for n, v in enumerate(paper))
    return PaperTable(title="x", columns=("a",), metrics=(metric,), rows=rows)


def scores(
    *values: float | None, width: float = 0.0, better: str = "lower", metric: str = "FID"
) -> dict[str, dict[str, Score]]:
    def one(value: float | None) -> Score:
        ends = (None, None) if value is None else (value - width, value + width)
        return Score(metric, value, better, *ends)

    return {f"row{n}": {metric: one(value)} for n, value in enumerate(values)}


@pytest.mark.parametrize(
    ("paper", "ours", "width", "verdict", "counts"),
    [
        ((3.0, 2.0, 1.0), (30.0, 20.0, 10.0), 1.0, "agrees", (3, 0, 3, 0)),
        ((3.0, 2.0, 1.0), (30.0, 20.0, 10.0), 20.0, "cannot be told", (3, 0, 0, 0)),
        ((3.0, 2.0, 1.0), (10.0, 20.0, 30.0), 1.0, "disagrees", (0, 3, 0, 3)),
        ((3.0, 2.0, 1.0), (30.0, 10.0, 20.0), 1.0, "agrees in part", (2, 1, 2, 1)),
        ((3.0, 2.0, 1.0), (30.0, 10.0, 11.0), 1.0, "agrees", (2, 1, 2, 0)),
        ((2.0, 2.0, 1.0), (10.0, 30.0, 5.0), 0.1, "agrees", (2, 0, 2, 0)),
    ],
)
def test_pairs_are_counted(
    paper: tuple[float, ...],
    ours: tuple[float, ...],
    width: float,
    verdict: str,
    counts: tuple[int, ...],
) -> None:
    (found,) = agreement(table(*paper), scores(*ours, width=width))
    assert found.verdict == verdict
    assert (found.same, found.reversed, found.clear_same, found.clear_reversed) == counts
    assert f"the order {verdict}" in str(found)


def test_pairs_are_counted_when_higher_is_better() -> None:
    (found,) = agreement(
        table(0.1, 0.3, metric="CIDEr"), scores(1.0, 2.0, better="higher", metric="CIDEr")
    )
    assert (found.verdict, found.best, found.paper_best) == ("agrees", "row1", "row1")


def test_the_best_row_is_named_if_it_is_another() -> None:
    (found,) = agreement(table(3.0, 2.0, 1.0), scores(30.0, 10.0, 11.0))
    assert "the best row is row1, not the paper's" in str(found)


def test_rows_without_a_number_are_left_out() -> None:
    assert agreement(table(3.0, 2.0), scores(1.0, None)) == []
    assert agreement(table(3.0, None), scores(1.0, 2.0)) == []
    (found,) = agreement(table(3.0, None, 1.0), scores(5.0, 1.0, 2.0))
    assert (found.same, found.best) == (1, "row2")
