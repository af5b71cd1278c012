"""What the paper's tables are: rows, and the figures printed in them."""

from __future__ import annotations

from functools import cache
from importlib import resources

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
    trained: PositiveInt = 100
    keep: int | None = Field(default=None, ge=1, le=10)

    @property
    def model(self) -> str:
        """The name under which a config gives this row's bundle."""
        return self.bundle or self.id

    def evaluations(self, timesteps: int) -> int | None:
        """How often a decoder trained with `timesteps` runs its network; None: as it likes.

        The paper starts its chain at step T of 100; here as many evaluations are spread over the
        whole chain, in proportion when the chain has another length.
        """
        if self.steps is None:
            return None
        share = -(-self.steps // self.stride) / self.trained
        return max(1, round(share * timesteps))


class PaperTable(Config):
    """A table's columns, metrics and rows."""

    title: str
    columns: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: tuple[Row, ...]

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
    """One of the tables 2 to 7."""
    try:
        return _tables()[number]
    except KeyError:
        hint = "table 1 is the listening test: diffsound evaluate listen" if number == 1 else ""
        raise InputError(f"there is no table {number} to repeat, only 2 to 7; {hint}") from None
