"""True sentences about a scene, in varied natural English.

What a scene consists of is known: which sounds are simultaneous, which follow each other, the
background, what is distant or repeated. This module only words it, so a caption is always true.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from diffsound.text.english import ARTICLES, MASS_NOUNS, Phrase, is_plural, phrase_of, tidy

AGAIN = ("repeatedly", "again and again", "over and over")
FAR = ("in the distance", "far away")
_FRAME = re.compile(r"^(?:(?:a|the) (?:sounds?|recording) of )?(.+?)(?: sound effects?)?$")


@dataclass(frozen=True)
class Heard:
    """One sound of a scene, for a sentence: its captions, and how it is played."""

    captions: tuple[str, ...]
    distant: bool = False
    repeated: bool = False


@dataclass(frozen=True)
class Outline:
    """Which sounds occur when: moments follow each other, the sounds of one moment overlap, and the
    background lasts throughout. A moment has one or two sounds; there is at least one sound.
    """

    moments: tuple[tuple[Heard, ...], ...]
    background: Heard | None = None


@dataclass(frozen=True)
class _Part:
    """A piece of a sentence: a statement ("a dog barks") or a thing heard ("a dog barking")."""

    text: str
    stated: bool
    joined: bool = False  # already has a conjunction, so another may be ambiguous


def captions_of(outline: Outline, count: int, rng: np.random.Generator) -> tuple[str, ...]:
    """Up to `count` different captions of a scene; at least one."""
    found: dict[str, None] = {}
    for _ in range(4 * count):
        found.setdefault(caption_of(outline, rng))
        if len(found) == count:
            break
    return tuple(found)


def caption_of(outline: Outline, rng: np.random.Generator) -> str:
    """One caption of a scene, from a random caption of each of its sounds."""
    moments = [[_drawn(sound, rng) for sound in moment] for moment in outline.moments]
    background = _drawn(outline.background, rng) if outline.background else None
    stated = bool(rng.random() < 0.5)
    simple = len(moments) > 1  # "a dog barks, then ...", not "a dog is barking, then ..."
    if simple and not all(sound.phrase.statements for moment in moments for sound in moment):
        stated = False  # statements and bare names do not mix in a sequence
    parts = [_moment(moment, stated, simple, rng) for moment in moments]
    if background is None:
        return _sequence(parts, rng).text
    if not parts:
        return _sound(background, stated, False, rng).text
    return _over_background(_sequence(parts, rng), background, len(parts), rng)


@dataclass(frozen=True)
class _Drawn:
    """A sound with the caption chosen for this sentence."""

    phrase: Phrase
    distant: bool
    repeated: bool


def _drawn(sound: Heard, rng: np.random.Generator) -> _Drawn:
    return _Drawn(phrase_of(_choose(fitting(sound.captions), rng)), sound.distant, sound.repeated)


@lru_cache(maxsize=65536)
def fitting(captions: tuple[str, ...]) -> tuple[str, ...]:
    """The captions that can be part of a sentence, without introductory phrases.

    "the sound of a dog barking" -> "a dog barking"; a keyword ("hen") only if all are keywords.
    """
    plain = dict.fromkeys(_FRAME.sub(r"\1", tidy(caption)) for caption in captions)
    good = tuple(caption for caption in plain if _is_phrase(caption))
    return good or tuple(plain)


def _is_phrase(caption: str) -> bool:
    words = caption.split()
    return bool(words) and bool(
        words[0] in ARTICLES
        or words[-1] in MASS_NOUNS
        or is_plural(words)
        or phrase_of(caption).statements
        or any(word.endswith("ing") for word in words)
    )


def _sound(sound: _Drawn, stated: bool, simple: bool, rng: np.random.Generator) -> _Part:
    """One sound, as a statement if wanted and if its caption has a verb."""
    statements = sound.phrase.statements
    if stated and statements:
        text = statements[0] if simple else _choose(statements, rng)
        if sound.repeated:
            text = f"{text} {_choose(AGAIN, rng)}"
        return _Part(_far_off(text, rng) if sound.distant else text, stated=True)
    return _Part(_noun(sound, rng), stated=False)


def _noun(sound: _Drawn, rng: np.random.Generator) -> str:
    text, verbal = sound.phrase.noun, sound.phrase.verbal
    if sound.repeated:
        text = f"{text} {_choose(AGAIN, rng)}" if verbal else f"{text} heard {_choose(AGAIN, rng)}"
    elif sound.distant and "distan" not in text and rng.random() < 0.3:
        article, _, rest = text.partition(" ")
        if article in ("a", "an"):
            return f"a distant {rest}"
        if article != "the" and verbal:
            return f"distant {text}"
    return _far_off(text, rng) if sound.distant else text


def _far_off(text: str, rng: np.random.Generator) -> str:
    said_already = "distan" in text or "far away" in text
    return text if said_already else f"{text} {_choose(FAR, rng)}"


def _moment(
    sounds: Sequence[_Drawn], stated: bool, simple: bool, rng: np.random.Generator
) -> _Part:
    """One sound, or two simultaneous ones in either order."""
    parts = [_sound(sound, stated, simple, rng) for sound in sounds]
    if len(parts) == 1:
        return parts[0]
    first, second = (parts[i] for i in rng.permutation(2))
    if second.stated:
        word = _choose(("while", "as"), rng)
        return _Part(f"{first.text} {word} {second.text}", first.stated, joined=True)
    if first.stated:
        return _Part(f"{first.text} with {second.text} at the same time", True, joined=True)
    end = _choose(("at the same time", "together"), rng)
    return _Part(f"{first.text} and {second.text} {end}", False, joined=True)


def _sequence(parts: Sequence[_Part], rng: np.random.Generator) -> _Part:
    """Parts in sequence; either all of them are statements or none."""
    if len(parts) == 1:
        return parts[0]
    first, last = parts[0], parts[-1]
    stated, a, b = first.stated, first.text, last.text
    if len(parts) == 2:
        ways = [f"{a}, then {b}", f"{a} and then {b}", f"first {a}, then {b}"]
        if not stated:
            ways.append(f"{a}, followed by {b}" if first.joined else f"{a} followed by {b}")
        if not (first.joined or last.joined):
            ways += [f"{a} before {b}", f"{b} after {a}"]
        if stated and not last.joined:
            ways.append(f"after {a}, {b}")
    else:
        middle = [part.text for part in parts[1:-1]]
        between = ", then ".join(middle)
        ways = [f"{a}, then {between}, then {b}", f"first {a}, then {between}, and finally {b}"]
        if not stated:
            ways.append(f"{a}, followed by {between} and then {b}")
        if len(middle) == 1 and not (first.joined or parts[1].joined):
            ways.append(f"{a} before {between}, and then {b}")
    return _Part(_choose(ways, rng), stated, joined=True)


def _over_background(
    body: _Part, background: _Drawn, moments: int, rng: np.random.Generator
) -> str:
    """The body with the background sound."""
    name = _sound(background, False, False, rng).text
    states = _sound(background, True, False, rng)
    behind = "in the background throughout" if moments > 1 else "in the background"
    ways = [f"{body.text} with {name} {behind}"]
    if states.stated and body.stated:
        # Before a sequence "as" covers all of it; after one it would cover only the last event.
        ways.append(f"{_choose(('while', 'as'), rng)} {states.text}, {body.text}")
        if not body.joined:
            ways.append(f"{body.text} {_choose(('while', 'as'), rng)} {states.text}")
            ways.append(f"{states.text} while {body.text}")
    if not body.stated:
        ways.append(f"{name} with {body.text}")
        if body.joined:
            ways.append(f"{name} in the background, {body.text}")
        elif not body.text.endswith("over"):
            ways.append(f"{body.text} over {name}")
    return _choose(ways, rng)


def _choose(options: Sequence[str], rng: np.random.Generator) -> str:
    return options[int(rng.integers(len(options)))]
