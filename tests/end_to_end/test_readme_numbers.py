"""Numbers of the documentation that a command can check."""

from __future__ import annotations

import re
from pathlib import Path

from diffsound.model.bundle import Bundle

ROOT = Path(__file__).parents[2]


def test_the_parameter_count_is_what_the_bundle_has() -> None:
    """`diffsound bundle inspect` prints the same numbers stage by stage."""
    page = (ROOT / "docs" / "alternatives.md").read_text(encoding="utf-8")
    (stated,) = re.findall(r"^\| parameters \| (\d+) M, plus \d+ M in the text", page, flags=re.M)
    counted = sum(Bundle.from_pretrained(None).parameters().values())
    assert round(counted / 1e6) == int(stated)
