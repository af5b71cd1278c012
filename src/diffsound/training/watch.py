"""What the loop watches: averages of logged scalars, and signals that ask it to stop."""

from __future__ import annotations

import signal
import time
from types import FrameType

import torch
from torch import Tensor

from diffsound.training.engine import Accelerator


class Meter:
    """Averages logged scalars over the steps since it was last read, and over processes."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self._reset()

    def _reset(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}
        self.steps = 0
        self.since = time.monotonic()

    def add(self, logs: dict[str, Tensor]) -> None:
        self.steps += 1
        for name, value in logs.items():
            value = value.to(self.accelerator.device, torch.float32)
            self.sums[name] = self.sums[name] + value if name in self.sums else value
            self.counts[name] = self.counts.get(name, 0) + 1

    def read(self) -> tuple[dict[str, float], float, int]:
        """(means, seconds, steps) since the last reading."""
        seconds, steps = max(time.monotonic() - self.since, 1e-9), self.steps
        values: dict[str, float] = {}
        if self.sums:
            means = torch.stack([total / self.counts[name] for name, total in self.sums.items()])
            if self.accelerator.num_processes > 1:
                means = self.accelerator.reduce(means, "mean")
            values = dict(zip(self.sums, means.tolist(), strict=True))
        self._reset()
        return values, seconds, steps


class StopSignals:
    """Turns SIGTERM and Ctrl-C into a flag, so that the loop can save before it ends.

    A second Ctrl-C interrupts at once.
    """

    def __init__(self) -> None:
        self.received = False

    def __enter__(self) -> StopSignals:
        self._old = {
            number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = True
