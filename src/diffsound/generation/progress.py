"""The progress of a call, reported after every sampling step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

# Called after every sampling step with the finished share of the whole call (0 to 1) and the
# current tokens [B, F', L'] of the running micro-batch.
ProgressCallback = Callable[[float, Tensor], None]


def shared(
    callback: ProgressCallback | None, parts: Sequence[int]
) -> Iterator[ProgressCallback | None]:
    """A callback for each of several calls, which make so many sounds each, for one in all."""
    done = 0
    for part in parts:
        yield None if callback is None else _within(callback, done, part, sum(parts))
        done += part


def _within(callback: ProgressCallback, done: int, part: int, total: int) -> ProgressCallback:
    return lambda share, tokens: callback((done + part * share) / total, tokens)


@dataclass
class Progress:
    """Counts the sounds of a call and calls back after every sampling step."""

    callback: ProgressCallback | None
    sounds: int
    finished: int = 0
    running: int = 0

    def next_batch(self, sounds: int) -> None:
        """The running batch is finished; one of this many sounds begins."""
        self.finished += self.running
        self.running = sounds

    def step(self, done: int, total: int, tokens: Tensor) -> None:
        """tokens: [sounds x takes, F', L'], of which the callback sees the first take of each."""
        if self.callback is not None:
            share = (self.finished + self.running * done / total) / self.sounds
            self.callback(share, tokens[:: len(tokens) // self.running])
