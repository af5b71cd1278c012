"""A sentence about sounds, read as a scene: what is heard, when, how often, how long, how far away.

    read_scene("rain, then a dog barks twice in the distance")
    # (Voice("rain", 0), Voice("a dog barks", 1, distant=True, count=2))

The opposite of `data/soundscape_text.py`, which puts scenes into words. Only a few forms are
understood, and nothing is guessed: if a part could not stand alone ("a car starts, then drives
away"), the sentence stays whole, as one voice in its original words. "Two dogs bark" is about two
dogs, not two barks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from diffsound.text.english import (
    ARTICLES,
    CONTINUING,
    EVENTS,
    MASS_NOUNS,
    PREPOSITIONS,
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

MOST_EVENTS = 10
SHORTER, LONGER = 0.6, 1.6  # what "a quick …" and "a long …" make of a length

_NUMBERS = {
    word: number
    for number, word in enumerate(
        ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"), 1
    )
} | {"a": 1, "an": 1, "fifteen": 15, "twenty": 20, "thirty": 30}
_NUMBER = rf"(\d+(?:\.\d+)?|{'|'.join(_NUMBERS)})"
_ROUGHLY = r"(?:(?:about|around|almost|at least|nearly|roughly) )?"

_TIMES = re.compile(rf"\b(?:(once|twice|thrice)|{_NUMBER} times)\b(?! again)")
_ONCE = {"once": 1, "twice": 2, "thrice": 3}
# "at once", "once in a while", "all at once": other meanings of the word.
_NOT_TIMES = re.compile(r"\b(?:at once|once (?:a|an|in|every|the|it|he|she|they|upon)\b)")
_AMOUNT = re.compile(
    rf"^(?:(?:just |exactly |only )?(?:an? (single|couple of|pair of)|{_NUMBER})) "
)
_SECONDS = re.compile(
    rf",? ?\b(?:for|lasting|that lasts|over) {_ROUGHLY}{_NUMBER} ?(?:s|secs?|seconds?)\b"
)
_SECONDS_OF = re.compile(rf"^{_ROUGHLY}{_NUMBER} ?(?:s|secs?|seconds?) of ")
_SECONDS_LONG = re.compile(rf"\b(?:an? )?{_NUMBER}[- ]seconds?(?:[- ]long)? ")
_LONG = re.compile(r"\b(?:long|prolonged|lengthy|drawn-out|sustained)\b(?! (?:way|ago|distance))")
_SHORT = re.compile(r"\b(?:short|quick|brief|rapid|quickly|briefly)\b")


@dataclass(frozen=True)
class Voice:
    """One sound of a scene.

    moment: voices of a moment sound together, after those of the moment before; None: throughout.
    count: how many times it happens; seconds: how long it lasts; None: the sentence does not say.
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


def read_count(text: str) -> tuple[str, int | None]:
    """The sentence about one event, and how many of them are asked for; None if it does not say."""
    said = tidy(text)
    if (found := _TIMES.search(said)) and not _NOT_TIMES.search(said):
        word, number = found.groups()
        count = _ONCE[word] if word else _whole(number)
        rest = tidy(f"{said[: found.start()].rstrip(' ,')} {said[found.end() :].lstrip(' ,')}")
        if count is not None and rest:
            return rest, count
    if (found := _AMOUNT.match(said)) and not phrase_of(said).statements:
        kind, number = found.groups()
        count = _whole(number) if number else 1 if kind == "single" else 2
        event = _singular(said[found.end() :].split())
        if count is not None and event is not None:
            return event, count
    return text, None


def read_seconds(text: str) -> tuple[str, float | None]:
    """The sentence without what it says about its length in seconds, and that length."""
    said = tidy(text)
    for pattern in (_SECONDS, _SECONDS_OF, _SECONDS_LONG):
        if found := pattern.search(said):
            article = "a " if pattern is _SECONDS_LONG and found[0].startswith("a") else ""
            rest = tidy(said[: found.start()] + article + said[found.end() :])
            seconds = _number(found[1])
            if rest and seconds > 0:
                return rest, seconds
    return text, None


def stretch(text: str) -> float:
    """What the words of a sentence make of a length: "a long beep" is longer than a beep."""
    return (LONGER if _LONG.search(text) else 1.0) * (SHORTER if _SHORT.search(text) else 1.0)


def _number(text: str) -> float:
    return float(_NUMBERS[text]) if text in _NUMBERS else float(text)


def _whole(text: str) -> int | None:
    """A number of events: a whole one, not too many."""
    number = _number(text)
    return int(number) if number == int(number) and 1 <= number <= MOST_EVENTS else None


def _singular(words: list[str]) -> str | None:
    """ "loud knocks on a door" -> "a loud knock on a door"; None if it names no short event."""
    end = next((i for i, word in enumerate(words) if i and word in PREPOSITIONS), len(words))
    if not words or words[0] in ARTICLES or "and" in words:
        return None
    forms = (words[end - 1].removesuffix(ending) for ending in ("", "s", "es"))
    event = next((form for form in forms if form in EVENTS), None)
    if event is None:
        return None
    named = [*words[: end - 1], event, *words[end:]]
    return " ".join(["an" if named[0][0] in "aeiou" else "a", *named])
