"""Curriculum learning (section IV-C, algorithm 3): easy clips first.

A clip with one event is easy, one with several is hard. The clips are split into the single event
set (SES) and the multiple event set (MES) by their number of labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from diffsound.errors import DataError, InputError

Schedule = Literal["paper", "mixed"]


class CurriculumSampler:
    """Which items an epoch has, and in which order; an `ItemSampler`.

    "paper" is algorithm 3: n epochs on SES, then 2n on MES. Whatever follows the 3n epochs stays
    on MES.

    "mixed" forgets nothing: every epoch has all of SES, and clips of MES join them, from none in
    the first epoch to all in the last of the 3n, those with fewer events earlier. It is what the
    paper's introduction describes ("gradually add the audio clips that include multiple events").

    An epoch's items depend on (seed, epoch) alone, so a run resumes from two integers, and
    processes that take interleaved items of the same epoch never meet.
    """

    def __init__(
        self,
        label_counts: Sequence[int],
        n: int,
        *,
        schedule: Schedule = "paper",
        seed: int = 0,
    ) -> None:
        """label_counts[i] is the number of labels of item i; n is the n of algorithm 3."""
        if n < 1:
            raise InputError(f"the curriculum's n must be 1 or more, not {n}")
        if schedule not in ("paper", "mixed"):
            raise InputError(f"the curriculum is 'paper' or 'mixed', not '{schedule}'")
        counts = np.asarray(label_counts, dtype=np.int64)
        self.n = n
        self.schedule = schedule
        self.seed = seed
        # A clip without labels has no second event to learn, so it counts as easy.
        self.single = np.flatnonzero(counts <= 1)
        multiple = np.flatnonzero(counts > 1)
        for name, items in (("one label", self.single), ("several labels", multiple)):
            if len(items) == 0:
                raise DataError(
                    f"the curriculum needs clips with {name} and there are none; "
                    "train without a curriculum"
                )
        # Fewest events first; among equals a fixed random order, not the data set's.
        shuffled = np.random.default_rng(seed).permutation(multiple)
        self.multiple = shuffled[np.argsort(counts[shuffled], kind="stable")]

    @property
    def epochs(self) -> int:
        """The length of the curriculum, 3n."""
        return 3 * self.n

    def epoch_items(self, epoch: int) -> list[int]:
        """Dataset indices of this epoch (counted from 0), shuffled."""
        if epoch < 0:
            raise InputError(f"epochs are counted from 0, there is no epoch {epoch}")
        items = self._members(epoch)
        order: list[int] = np.random.default_rng([self.seed, epoch]).permutation(items).tolist()
        return order

    def _members(self, epoch: int) -> np.ndarray:
        if self.schedule == "paper":
            return self.single if epoch < self.n else self.multiple
        share = min(epoch / (self.epochs - 1), 1.0)
        return np.concatenate([self.single, self.multiple[: round(share * len(self.multiple))]])
