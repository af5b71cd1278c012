"""How long the attacks run, and what they counted.

Seconds in CI, as long as you like with DIFFSOUND_ATTACK=10000. With DIFFSOUND_TALLY=FILE every
test adds its counts to a file, of which tools/reliability.py makes docs/reliability.md.
"""

from __future__ import annotations

import atexit
import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable

from hypothesis import HealthCheck, settings

from diffsound.errors import DiffsoundError

EXAMPLES = int(os.environ.get("DIFFSOUND_ATTACK", "0"))
_SURVIVED: defaultdict[str, Counter[str]] = defaultdict(Counter)


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
    counts = _SURVIVED[os.environ.get("PYTEST_CURRENT_TEST", "").split("::")[-1].split(" ")[0]]
    counts["inputs"] += 1
    try:
        call()
    except DiffsoundError as error:
        message = str(error)
    else:
        return True
    counts["refused"] += 1
    assert message
    assert "\n" not in message, message
    assert len(message) < 2000, message
    return False


def tally(name: str, **counts: int) -> None:
    """Add a line of counts to the file DIFFSOUND_TALLY, if it is set."""
    if path := os.environ.get("DIFFSOUND_TALLY"):
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps({"name": name, **counts}) + "\n")


@atexit.register
def _tally_survived() -> None:
    for test, counts in _SURVIVED.items():
        name = test.removeprefix("test_").partition("[")[0].replace("_", " ")
        tally(f"fuzz: {name}", inputs=counts["inputs"], refused=counts["refused"])
