"""How many and how long, in the words of a sentence: "twice", "three claps", "for five seconds".

    read_count("a dog barks twice")  # ("a dog barks", 2)
    read_count("three loud claps")   # ("a loud clap", 3)
    read_seconds("rain for 8 seconds")  # ("rain", 8.0)

A few forms are read and nothing is guessed. "Two dogs bark" is about two dogs, not two barks.
"""

from __future__ import annotations

import re

from diffsound.text.english import ARTICLES, EVENTS, PREPOSITIONS, phrase_of, tidy

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
