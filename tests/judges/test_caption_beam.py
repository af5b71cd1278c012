"""Beam search against the enumeration of all sentences."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from diffsound.errors import InputError
from diffsound.judges.captioner import beam_search

START, END, WORDS = 0, 1, 4


class Table:
    """A model whose next word depends on all words before it, through a hash of them."""

    def __init__(self, seed: int, batch: int) -> None:
        self.seed = seed
        self.rows: list[tuple[int, ...]] = [(item,) for item in range(batch)]

    def log_probs(self, row: tuple[int, ...]) -> Tensor:
        number = hash((self.seed, row)) % (2**31)
        logits = 2 * torch.randn(WORDS, generator=torch.Generator().manual_seed(number))
        logits[START] = -torch.inf
        return logits.double().log_softmax(-1)

    def step(self, numbers: Tensor) -> Tensor:
        pairs = zip(self.rows, numbers.tolist(), strict=True)
        self.rows = [(*row, number) for row, number in pairs]
        return torch.stack([self.log_probs(row) for row in self.rows])

    def keep(self, rows: Tensor) -> None:
        self.rows = [self.rows[row] for row in rows.tolist()]


def every_sentence(seed: int, item: int, longest: int, penalty: float) -> dict[tuple, float]:
    """Score of every sentence of at most `longest` words, by the definition."""
    table = Table(seed, 1)
    found = {}
    for length in range(longest + 1):
        for words in itertools.product([2, 3], repeat=length):
            said = (*words, END)
            row = (item, START)
            total = 0.0
            for word in said:
                total += float(table.log_probs(row)[word])
                row = (*row, word)
            found[said] = total / len(said) ** penalty
    return found


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from([0.0, 0.7, 1.0]))
def test_a_wide_beam_finds_the_best_sentences(seed: int, longest: int, penalty: float) -> None:
    beams = 2**longest
    found = beam_search(
        Table(seed, 2),
        2,
        start=START,
        end=END,
        beams=beams,
        longest=longest,
        length_penalty=penalty,
    )
    for item in range(2):
        truth = sorted(every_sentence(seed, item, longest, penalty).items(), key=lambda x: -x[1])
        for place in range(beams):
            said, score = truth[place]
            row = found.numbers[item, place].tolist()
            assert tuple(row[: len(said)]) == said
            assert set(row[len(said) :]) <= {END}
            assert math.isclose(float(found.scores[item, place]), score, rel_tol=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_a_narrow_beam_gives_true_scores_in_order(seed: int, beams: int) -> None:
    found = beam_search(Table(seed, 1), 1, start=START, end=END, beams=beams, longest=5)
    truth = every_sentence(seed, 0, 5, 0.7)
    scores = found.scores[0].tolist()
    assert scores == sorted(scores, reverse=True)
    for row, score in zip(found.numbers[0].tolist(), scores, strict=True):
        assert math.isclose(truth[(*row[: row.index(END)], END)], score, rel_tol=1e-9)


def test_no_beam_is_refused() -> None:
    with pytest.raises(InputError, match="at least one beam"):
        beam_search(Table(0, 1), 1, start=START, end=END, beams=0)
