"""Tokens and mels for a batch of jobs: the best of several takes of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from diffsound.chain import Chain
from diffsound.choosing import MatcherRanker, best_takes
from diffsound.decoder.contract import Choice, Known, SamplingSettings, StepCallback
from diffsound.editing import Edit
from diffsound.jobs import Job, take_seed
from diffsound.text.features import TextFeatures


@dataclass(frozen=True)
class Order:
    """What the sounds of one run have in common.

    samples: how many each has. avoid: the negative prompt, "" for none. record: what, with prompt
    and seed, makes a sound again. edit: the clip they change, if they do.
    """

    samples: int
    settings: SamplingSettings
    avoid: str
    record: dict[str, Any]
    edit: Edit | None = None

    def known(self, count: int) -> Known | None:
        """The tokens that so many sounds begin with."""
        return None if self.edit is None else self.edit.known(count)


class Drawn(NamedTuple):
    """Tokens [B, F', L'], mels [B, n_mels, L], and how well each fits, if it was chosen."""

    tokens: Tensor
    mels: Tensor
    scores: Sequence[float | None]


def draw_best(
    chain: Chain,
    matcher: MatcherRanker | None,
    jobs: Sequence[Job],
    text: TextFeatures,
    order: Order,
    on_step: StepCallback,
) -> Drawn:
    """For every job the best of `best_of` takes, which are drawn together.

    They are compared when they are finished or, where that can be told before, on the way: then
    only the best of them is finished. matcher: needed for more than one take.
    """
    settings = order.settings
    takes = settings.best_of
    seeds = [take_seed(job.seed, take) for job in jobs for take in range(takes)]
    texts = text.repeat(takes)
    early = takes > 1 and settings.chosen_after < 1 and chain.can_choose_early

    def on_take(done: int, total: int, tokens: Tensor) -> None:
        on_step(done, total, tokens[:: len(tokens) // len(jobs)])

    def best(tokens: Tensor) -> Tensor:
        assert matcher is not None
        mels = chain.sketch(tokens)
        return best_takes(matcher.fit(texts, mels), mels, takes)

    tokens = chain.draw(
        texts, seeds, order.samples, settings,
        avoid=order.avoid, known=order.known(len(seeds)), on_step=on_take,
        choice=Choice(settings.chosen_after, best) if early else None,
    )  # fmt: skip
    mels = chain.decode(tokens)
    if takes == 1:
        return Drawn(tokens, mels, [None] * len(jobs))
    assert matcher is not None
    if early:
        return Drawn(tokens, mels, matcher.fit(text, mels))
    fits = matcher.fit(texts, mels)
    chosen = best_takes(fits, mels, takes)
    return Drawn(tokens[chosen], mels[chosen], [fits[place] for place in chosen.tolist()])
