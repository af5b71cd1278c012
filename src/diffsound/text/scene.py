"""A sentence about sounds, read as a scene: what is heard, when, how often, and from how far.

    read_scene("rain, then a dog barks in the distance")
    # (Voice("rain", 0), Voice("a dog barks", 1, distant=True))

The opposite of `data/soundscape_text.py`, which puts scenes into words. Only a few connectives are
understood, and nothing is guessed: if a part could not stand alone ("a car starts, then drives
away"), the sentence stays whole, as one voice in its original words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from diffsound.text.amounts import read_count, read_seconds
from diffsound.text.english import (
    ARTICLES,
    CONTINUING,
    MASS_NOUNS,
    is_plural,
    is_verb,
    phrase_of,
    tidy,
)

MOST_VOICES = 6
MOST_CHARACTERS = 300  # longer texts are stories, and slow to parse

_FIRST = re.compile(r"^first(?: of all)?,? ")
# One after another, with anything on either side.
_THEN = re.compile(
    r",? (?:and )?then,? (?:finally,? )?|,? (?:(?:and|is|are) )?followed by |,? and finally,? "
)
_THEN_DOING = re.compile(r"\bthen,? (\w+ing)\b")
# These words also mean other things, so both sides must be sounds.
_BEFORE = re.compile(r" before ")
_AFTER = re.compile(r"^(?P<later>.+) after (?!another\b)(?P<sooner>.+)$")
_AFTER_FIRST = re.compile(r"^after (?P<sooner>[^,]+), (?P<later>.+)$")
# "as the wheel turns", "with the flu": a thing already mentioned adds no sound.
_TOGETHER = re.compile(r",? while |,? (?:as|with) (?!(?:the|its|his|her|their) )")
_LIST = re.compile(r", and |, | and ")
_AT_ONCE = re.compile(r"^(?P<parts>.+) (?:at the same time|together|at once|simultaneously)$")
_ONCE_JOIN = re.compile(r",? (?:and|with|while) ")
_BEHIND = re.compile(
    r"^(?P<front>.+),? (?:with|and|while|over) (?P<behind>.+) in the background(?: throughout)?$"
)
_BEHIND_FIRST = re.compile(
    r"^(?:with )?(?P<behind>.+) in the background(?: throughout)?,? (?:(?:while|as|with|and) )?"
    r"(?P<front>.+)$"
)
_WHILE_FIRST = re.compile(r"^(?:while|as) (?P<behind>[^,]+), (?P<front>.+)$")
_OVER = re.compile(r"^(?P<front>.+) over (?P<behind>.+)$")

_FAR_PLACE = re.compile(
    r",? ?\b(?:heard |coming )?(?:off |far )?"
    r"(?:in the (?:far )?distance|(?:at|from) a distance|from afar|(?:from )?far (?:away|off))\b"
)
_FAR_WORD = re.compile(r"\b(?:(an?) )?(?:distant|faraway|far-off) (?=(\w))")


@dataclass(frozen=True)
class Voice:
    """One sound of a scene.

    moment: voices of a moment sound together, after those of the moment before; None: throughout.
    count: how many times it happens; None: the sentence does not say. seconds: how long, likewise.
    """

    text: str
    moment: int | None = 0
    distant: bool = False
    count: int | None = None
    seconds: float | None = None


def read_scene(prompt: str) -> tuple[Voice, ...]:
    """The voices of a sentence, at least one; in the order of their moments, backgrounds last."""
    whole = (Voice(prompt),)
    if len(prompt) > MOST_CHARACTERS:
        return whole
    text = _FIRST.sub("", tidy(prompt))
    front, behind = _background(text)
    voices = [
        _voice(part, number)
        for number, moment in enumerate(_moments(front))
        for part in _together(moment)
    ]
    if behind is not None:
        voices.append(_voice(behind, None))
    if len(voices) == 1 and not voices[0].distant:
        return (_with_amounts(prompt, 0),)
    if len(voices) > MOST_VOICES or not all(_stands_alone(v.text) for v in voices):
        return whole
    return tuple(voices)


def _background(text: str) -> tuple[str, str | None]:
    """The events, and the background if there is one."""
    for pattern in (_BEHIND_FIRST, _BEHIND):
        if (found := pattern.match(text)) and not _THEN.search(found["behind"]):
            return found["front"], found["behind"]
    if (found := _WHILE_FIRST.match(text)) and _act([found["behind"]]):
        return found["front"], found["behind"]
    if (found := _OVER.match(text)) and _act([found["front"], found["behind"]]):
        return found["front"], found["behind"]
    return text, None


def _moments(text: str) -> list[str]:
    """The parts that follow one another."""
    parts = _THEN.split(text)
    if _goes_on(text) and not is_verb(parts[0].split(" ")[0]):
        parts = [text]
    return [moment for part in parts for moment in _ordered(part)]


def _goes_on(text: str) -> bool:
    """ "an engine slowing down, then speeding up": the same sound continues."""
    return any(is_verb(word) for word in _THEN_DOING.findall(text))


def _ordered(text: str) -> list[str]:
    for pattern in (_AFTER_FIRST, _AFTER):
        if (found := pattern.match(text)) and _sounds([found["sooner"], found["later"]]):
            return [found["sooner"], found["later"]]
    parts = _BEFORE.split(text)
    return parts if _sounds(parts) else [text]


def _together(text: str) -> list[str]:
    """The parts that sound at the same time."""
    if found := _AT_ONCE.match(text):
        parts = _ONCE_JOIN.split(found["parts"])
        return parts if len(parts) > 1 and _sounds(parts) else [text]
    parts = _TOGETHER.split(text)
    if len(parts) > 1 and _sounds(parts) and _act(parts[1:]):
        return [single for part in parts for single in _listed(part)]
    return _listed(text)


def _listed(text: str) -> list[str]:
    """ "a dog barks and a cat meows", but not "a dog barks and growls" or "pots and pans"."""
    parts = _LIST.split(text)
    return parts if " and " in text and _act(parts) else [text]


def _voice(text: str, moment: int | None) -> Voice:
    near = _FAR_PLACE.sub("", text)
    near = _FAR_WORD.sub(_article, near)
    near = tidy(near)
    distant = bool(near) and near != tidy(text)
    return replace(_with_amounts(near or text, moment), distant=distant)


def _with_amounts(text: str, moment: int | None) -> Voice:
    """A voice without the words that say how often and how long, which are the mixer's task."""
    text, seconds = read_seconds(text)
    text, count = read_count(text)
    return Voice(text, moment, count=count, seconds=seconds)


def _article(found: re.Match[str]) -> str:
    """ "a distant owl" -> "an owl"."""
    article, letter = found.groups()
    if not article:
        return ""
    return "an " if letter in "aeiou" else "a "


def _stands_alone(text: str) -> bool:
    """Whether a part is a sound by itself; "growls", "it stops" and "nothing" are not."""
    words = tidy(text).split()
    if not words or words[0] in CONTINUING:
        return False
    if not is_verb(words[0]) or words[0].endswith("ing") or phrase_of(text).statements:
        return True
    return len(words) == 1 and not words[0].endswith("s")  # "bark" is a name too


def _sounds(parts: Iterable[str]) -> bool:
    """Whether all parts name things that can be heard, unlike the "dawn" of "before dawn"."""
    return all(_is_sound(_FAR_PLACE.sub("", part)) for part in parts)


def _is_sound(text: str) -> bool:
    words = tidy(text).split()
    if not words or words[0] in CONTINUING:
        return False
    named = words[0] in ARTICLES or words[-1] in MASS_NOUNS or is_plural(words)
    return named or bool(phrase_of(text).statements)


def _act(parts: Iterable[str]) -> bool:
    """Whether all parts say who does what, or imply a verb (rain, wind)."""
    return all(phrase_of(_FAR_PLACE.sub("", part)).statements for part in parts)
