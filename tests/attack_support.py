"""How long the fuzzers run: seconds in CI, as long as you like with DIFFSOUND_ATTACK=10000."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from hypothesis import HealthCheck, settings

from diffsound.errors import DiffsoundError

EXAMPLES = int(os.environ.get("DIFFSOUND_ATTACK", "0"))


def attack(examples: int) -> settings:
    """Hypothesis settings: `examples` in CI, DIFFSOUND_ATTACK of them if it is set."""
    return settings(
        max_examples=EXAMPLES or examples,
        deadline=None,
        derandomize=not EXAMPLES,  # CI finds the same every time; long runs look further
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def survives(call: Callable[[], object]) -> bool:
    """Whether nothing was wrong; if not, it must be one line of one of our own errors."""
    try:
        call()
    except DiffsoundError as error:
        message = str(error)
    else:
        return True
    assert message
    assert "\n" not in message, message
    assert len(message) < 2000, message
    return False


def tally(name: str, **counts: int) -> None:
    """Add to the counts of which tools/reliability.py makes its page, if DIFFSOUND_TALLY is set."""
    if path := os.environ.get("DIFFSOUND_TALLY"):
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps({"name": name, **counts}) + "\n")
