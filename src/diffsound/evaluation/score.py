"""What a metric returns: a number with its interval, or the reason why there is none."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Score:
    """A metric's value; `None` means not available, and the note says why. Never NaN.

    better: which direction is better. low, high: the interval of the stated confidence.
    """

    name: str
    value: float | None
    better: str  # "lower" or "higher"
    low: float | None = None
    high: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        for number in (self.value, self.low, self.high):
            if number is not None and not math.isfinite(number):
                raise ValueError(f"{self.name} is not finite: {self}")

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.name}: not available ({self.note})"
        interval = "" if self.low is None else f" [{self.low:.4g}, {self.high:.4g}]"
        return f"{self.name}: {self.value:.4g}{interval}"

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)
