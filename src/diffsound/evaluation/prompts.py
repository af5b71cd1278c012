"""The sentences that evaluations ask for: of one class, of two events, near and far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from diffsound.config import parse_yaml, shown
from diffsound.data.captions import phrase_table
from diffsound.errors import ConfigError
from diffsound.files import read_text
from diffsound.text.clean import clean_prompt
from diffsound.text.english import Phrase, phrase_of

# How two events are joined, and whether that says which comes first.
JOINS = {"then": True, "while": False, "followed by": True, "before": True}


@dataclass(frozen=True)
class TwoEvents:
    """A text of two events; `first` sounds before `second` if `ordered`."""

    id: str
    text: str
    join: str
    first: str
    second: str

    @property
    def ordered(self) -> bool:
        return JOINS[self.join]


def read_prompts(path: str | Path | None = None) -> dict[str, list[str]]:
    """Sentences by class: from a YAML file (`class: [sentence, …]`), or ours for ESC-50."""
    source = resources.files(__package__) / "prompts.yaml" if path is None else Path(path)
    try:
        content = parse_yaml(source.read_text("utf-8") if path is None else read_text(path))
    except (OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"the prompts in {source} cannot be read: {reason}") from error
    if not isinstance(content, dict) or not content:
        raise ConfigError(f"{source} must hold sentences by class: 'dog: [a dog barks, …]'")
    for label, sentences in content.items():
        texts = isinstance(sentences, list) and all(isinstance(text, str) for text in sentences)
        if not isinstance(label, str) or not texts or not sentences:
            raise ConfigError(f"{source}: '{shown(label)}' must have a list of sentences")
    return {label: [clean_prompt(text) for text in texts] for label, texts in content.items()}


def event(label: str) -> Phrase:
    """A class as a statement and as a noun phrase, in the wording of captions if they know it."""
    entry = phrase_table("esc50").get(label)
    phrases = [phrase_of(text) for text in (entry["say"] if entry else [f"the sound of {label}"])]
    return next((phrase for phrase in phrases if phrase.statements), phrases[0])


def joined(first: str, second: str, join: str) -> str:
    """Two classes in one sentence: "a dog barks, then rain falls"."""
    a, b = event(first), event(second)
    stated = a.statements and b.statements and join != "followed by"
    one, other = (a.statements[0], b.statements[0]) if stated else (a.noun, b.noun)
    return f"{one}, then {other}" if join == "then" else f"{one} {join} {other}"


def make_tasks(labels: Sequence[str], count: int, seed: int = 0) -> list[TwoEvents]:
    """Texts of two different classes, the joins in rotation; a pure function of the arguments."""
    rng = np.random.default_rng(seed)
    joins = list(JOINS)
    tasks = []
    for number in range(count):
        first, second = (labels[i] for i in rng.choice(len(labels), size=2, replace=False))
        join = joins[number % len(joins)]
        tasks.append(
            TwoEvents(f"two-{number:03d}", joined(first, second, join), join, first, second)
        )
    return tasks


def choose_events(labels: Sequence[str], count: int, seed: int) -> list[tuple[str, str]]:
    """(label, sentence) of `count` classes, drawn by the seed."""
    chosen = [labels[i] for i in np.random.default_rng(seed).permutation(len(labels))[:count]]
    return [(label, (event(label).statements or (event(label).noun,))[0]) for label in chosen]
