"""The sentences an evaluation asks for: of one class, and of two."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import yaml

from diffsound.data.titles import phrase_table
from diffsound.errors import ConfigError
from diffsound.text.clean import clean_prompt
from diffsound.text.english import Phrase, phrase_of


def read_prompts(path: str | Path | None = None) -> dict[str, list[str]]:
    """Sentences by class: of a YAML file (`class: [sentence, …]`), or ours for ESC-50's classes."""
    source = resources.files(__package__) / "prompts.yaml" if path is None else Path(path)
    try:
        content = yaml.safe_load(source.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"the prompts in {source} cannot be read: {reason}") from error
    if not isinstance(content, dict) or not content:
        raise ConfigError(f"{source} must hold sentences by class: 'dog: [a dog barks, …]'")
    for label, sentences in content.items():
        texts = isinstance(sentences, list) and all(isinstance(text, str) for text in sentences)
        if not isinstance(label, str) or not texts or not sentences:
            raise ConfigError(f"{source}: '{label}' must have a list of sentences")
    return {label: [clean_prompt(text) for text in texts] for label, texts in content.items()}


def event(label: str) -> Phrase:
    """A class as statement and as thing heard, in the wording of captions if they know it."""
    entry = phrase_table("esc50").get(label)
    phrases = [phrase_of(text) for text in (entry["say"] if entry else [f"the sound of {label}"])]
    return next((phrase for phrase in phrases if phrase.statements), phrases[0])


def joined(first: str, second: str, join: str) -> str:
    """Two classes in one sentence: "a dog barks, then rain falls"."""
    a, b = event(first), event(second)
    stated = a.statements and b.statements and join != "followed by"
    one, other = (a.statements[0], b.statements[0]) if stated else (a.noun, b.noun)
    return f"{one}, then {other}" if join == "then" else f"{one} {join} {other}"
