"""The likeliest sentences of a model: beam search with length normalisation, and greedy search.

The model is a `Decoding`: it remembers what it has been given, row by row, and is told which rows
live on. Nothing here knows what the numbers mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from diffsound.errors import InputError


class Decoding(Protocol):
    """A model in the middle of sentences, one per row."""

    def step(self, numbers: Tensor) -> Tensor:
        """Take the next number of every row, int64 [N]; log-probabilities of the one after it,
        [N, V], with -inf for what must not be said."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, int64 [M], in this order; a row may be named many times."""
        ...


@dataclass(frozen=True)
class Hypotheses:
    """The sentences found for each item, best first.

    numbers: int64 [B, beams, S], from the first number to the end mark, then filled with it.
    scores:  [B, beams] sum of log-probabilities / length ** length_penalty, the end mark counted;
             -inf where there are fewer sentences than beams.
    """

    numbers: Tensor
    scores: Tensor


def beam_search(
    model: Decoding,
    batch: int,
    *,
    start: int,
    end: int,
    beams: int = 4,
    longest: int = 30,
    length_penalty: float = 0.7,
) -> Hypotheses:
    """The best sentences of at most `longest` numbers, the end mark not counted.

    model: has `batch` rows, nothing said yet.
    length_penalty: 0 compares sums, which favours short sentences; 1 compares means.
    """
    if beams < 1 or longest < 1:
        raise InputError("a beam search needs at least one beam and one word")
    log_probs = model.step(torch.full((batch,), start))
    device, vocabulary = log_probs.device, log_probs.shape[-1]
    items = torch.arange(batch, device=device)[:, None]  # [B, 1]
    # One live row per item at first: equal rows would fill the beam with one sentence.
    sums = log_probs.new_zeros(batch, 1)
    said = torch.empty(batch, 1, 0, dtype=torch.int64, device=device)
    done = Hypotheses(
        torch.full((batch, beams, longest + 1), end, device=device),
        log_probs.new_full((batch, beams), -torch.inf),
    )
    for length in range(1, longest + 1):
        totals = sums[:, :, None] + log_probs.reshape(batch, -1, vocabulary)
        # A sentence may end here, whatever else could follow it.
        ended = totals[:, :, end] / length**length_penalty
        done = _best_of(done, said, ended, end)
        totals[:, :, end] = -torch.inf
        width = min(beams, totals[0].numel())
        sums, places = totals.flatten(1).topk(width)
        parents, numbers = places // vocabulary, places % vocabulary
        said = torch.cat((said[items, parents], numbers[:, :, None]), dim=-1)
        rows_each = totals.shape[1]
        model.keep((items * rows_each + parents).flatten())
        log_probs = model.step(numbers.flatten())
        # What is still running only loses; at best it loses nothing until the longest length.
        most = sums.amax(1) / (longest + 1) ** length_penalty
        if bool((done.scores[:, -1] >= most).all()):
            return done
    totals = sums + log_probs.reshape(batch, -1, vocabulary)[:, :, end]
    return _best_of(done, said, totals / (longest + 1) ** length_penalty, end)


def greedy_search(
    model: Decoding, batch: int, *, start: int, end: int, longest: int = 30
) -> Tensor:
    """The likeliest number at every step until the end mark: int64 [B, S], filled with it."""
    numbers = torch.full((batch,), start)
    said: list[Tensor] = []
    for _ in range(longest):
        likeliest = model.step(numbers).argmax(-1)
        ended = said[-1] == end if said else torch.zeros_like(likeliest, dtype=torch.bool)
        numbers = torch.where(ended, end, likeliest)
        said.append(numbers)
        if bool((numbers == end).all()):
            break
    return torch.stack(said, dim=1)


def _best_of(done: Hypotheses, said: Tensor, scores: Tensor, end: int) -> Hypotheses:
    """Join ended sentences said [B, n, S], scores [B, n] to those done; keep as many as before."""
    room = done.numbers.shape[-1]
    filled = torch.nn.functional.pad(said, (0, room - said.shape[-1]), value=end)
    numbers = torch.cat((done.numbers, filled), dim=1)
    best, places = torch.cat((done.scores, scores), dim=1).topk(done.scores.shape[1])
    return Hypotheses(numbers.gather(1, places[:, :, None].expand(-1, -1, room)), best)
