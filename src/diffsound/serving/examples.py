"""Prompts to try, as a model card lists them."""

from __future__ import annotations

import re

MAX_EXAMPLES = 12

_HEADING = re.compile(r"#+\s+(.*)")
_BULLET = re.compile(r"\s*[-*]\s+(.*)")

# For a card that lists none: the most common sounds of the data sets the field trains on.
FALLBACK = [
    "a dog barks",
    "rain on a roof",
    "thunder rumbles in the distance",
    "footsteps on gravel",
    "a door creaks",
    "birds chirp in the morning",
]


def example_prompts(card: str) -> list[str]:
    """The bullets under the card's heading "Example prompts" (any case, any level).

    >>> example_prompts("# M\\n## Example prompts\\n- a dog barks\\n* `rain`\\n## Data\\n- ESC-50")
    ['a dog barks', 'rain']
    """
    examples: list[str] = []
    inside = False
    for line in card.splitlines():
        if heading := _HEADING.match(line):
            inside = "example prompts" in heading[1].lower()
        elif inside and (bullet := _BULLET.match(line)):
            examples.append(bullet[1].strip().strip('`"“”'))
    return [text for text in examples if text][:MAX_EXAMPLES] or FALLBACK
