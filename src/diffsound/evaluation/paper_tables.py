"""What the paper's tables are: rows, and the figures printed in them. And one table of our own."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import yaml
from pydantic import Field, PositiveInt, model_validator

from diffsound.config import Config
from diffsound.errors import InputError


class Row(Config):
    """One row; see paper_tables.yaml."""

    id: str
    bundle: str = ""
    keys: tuple[str, ...]
    paper: tuple[float | None, ...]
    steps: PositiveInt | None = None
    stride: PositiveInt = 1
    keep: int | None = Field(default=None, ge=1, le=10)
    sampling: dict[str, Any] = Field(default_factory=dict)

    @property
    def model(self) -> str:
        """The name under which a config gives this row's bundle."""
        return self.bundle or self.id

    def stride_of(self, timesteps: int) -> int | None:
        """The time stride of a decoder trained with a chain of `timesteps`; None: every step.

        The paper's T at inference is read as the number of steps that the whole trained chain is
        cut into, and Δt as a stride over those: T = 25 with Δt = 3 on a chain of 100 is a stride of
        12, and 9 evaluations. "T denotes the start step" could also mean a chain that begins at
        step 25 of 100; table 5, which calls the same numbers inference steps, says otherwise.
        """
        if self.steps is None:
            return None
        return min(max(1, round(self.stride * timesteps / self.steps)), timesteps)


class PaperTable(Config):
    """A table's columns, metrics and rows. ours: it is not one of the paper's."""

    title: str
    columns: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: tuple[Row, ...]
    ours: bool = False

    @model_validator(mode="after")
    def _check(self) -> PaperTable:
        for row in self.rows:
            if len(row.keys) != len(self.columns) or len(row.paper) != len(self.metrics):
                raise ValueError(f"row {row.id} does not fit the columns")
        return self

    @property
    def models(self) -> list[str]:
        """The bundles the rows need, each once."""
        return list(dict.fromkeys(row.model for row in self.rows))


@cache
def _tables() -> dict[int, PaperTable]:
    text = (resources.files("diffsound.evaluation") / "paper_tables.yaml").read_text("utf-8")
    return {number: PaperTable.model_validate(t) for number, t in yaml.safe_load(text).items()}


def paper_table(number: int) -> PaperTable:
    """One of the tables 2 to 7, or 8, which is ours."""
    try:
        return _tables()[number]
    except KeyError:
        hint = "table 1 is the listening test: diffsound evaluate listen" if number == 1 else ""
        raise InputError(f"there is no table {number} to repeat, only 2 to 8; {hint}") from None
