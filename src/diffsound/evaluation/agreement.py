"""Whether our rows of a table come in the paper's order: counted, not judged by eye."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from diffsound.evaluation.paper_tables import PaperTable
from diffsound.evaluation.scores import Score

Scores = Mapping[str, Mapping[str, Score]]  # by row id, then by metric


@dataclass(frozen=True)
class Agreement:
    """Pairs of rows that the paper puts in an order, by one metric.

    same, reversed: pairs in the paper's order here and in the opposite one; clear_same and
    clear_reversed: those of them whose intervals do not overlap. best: the row that is best here,
    paper_best: in the paper.
    """

    metric: str
    same: int
    reversed: int
    clear_same: int
    clear_reversed: int
    best: str
    paper_best: str

    @property
    def verdict(self) -> str:
        if self.clear_reversed:
            return "disagrees" if not self.clear_same else "agrees in part"
        return "agrees" if self.clear_same else "cannot be told"

    def __str__(self) -> str:
        pairs = self.same + self.reversed
        best = "the paper's" if self.best == self.paper_best else f"{self.best}, not the paper's"
        return (
            f"{self.metric}: the order {self.verdict}. {self.same} of {pairs} pairs of rows are as "
            f"in the paper ({self.clear_same} beyond their intervals), {self.reversed} reversed "
            f"({self.clear_reversed} beyond); the best row is {best}."
        )


def agreement(table: PaperTable, rows: Scores) -> list[Agreement]:
    """One for every metric that at least two rows have, here and in the paper."""
    found = []
    for place, metric in enumerate(table.metrics):
        printed = {row.id: row.paper[place] for row in table.rows}
        measured = {
            row.id: rows[row.id][metric]
            for row in table.rows
            if printed[row.id] is not None
            and metric in rows.get(row.id, {})
            and rows[row.id][metric].value is not None
        }
        if len(measured) < 2:
            continue
        sign = 1 if next(iter(measured.values())).better == "lower" else -1
        paper = {name: sign * (printed[name] or 0.0) for name in measured}
        ours = {name: sign * (score.value or 0.0) for name, score in measured.items()}
        counts = {"same": 0, "reversed": 0, "clear_same": 0, "clear_reversed": 0}
        for a, b in combinations(measured, 2):
            if paper[a] == paper[b] or ours[a] == ours[b]:
                continue
            kind = "same" if (paper[a] < paper[b]) == (ours[a] < ours[b]) else "reversed"
            counts[kind] += 1
            counts[f"clear_{kind}"] += not _overlap(measured[a], measured[b])
        best, paper_best = (min(values, key=values.__getitem__) for values in (ours, paper))
        found.append(Agreement(metric, **counts, best=best, paper_best=paper_best))
    return found


def _overlap(a: Score, b: Score) -> bool:
    """Whether two intervals share a value; a score without one is taken as exact."""
    assert a.value is not None
    assert b.value is not None
    low_a, high_a = (a.value, a.value) if a.low is None or a.high is None else (a.low, a.high)
    low_b, high_b = (b.value, b.value) if b.low is None or b.high is None else (b.low, b.high)
    return low_a <= high_b and low_b <= high_a
