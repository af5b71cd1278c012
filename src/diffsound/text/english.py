"""Just enough English to put captions into longer sentences.

`phrase_of("a dog barks")` has a thing heard ("a dog barking") and statements ("a dog barks", "a dog
is barking"). There is no tagger: captions of sounds are short, and a list of verbs of sound with a
few rules of position reads them. What the rules cannot read stays as it is, as the name of a sound,
which is always correct English in the sentences that take names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import yaml


def _word_lists() -> dict[str, frozenset[str]]:
    text = files("diffsound.text").joinpath("english.yaml").read_text(encoding="utf-8")
    return {name: frozenset(words) for name, words in yaml.safe_load(text).items()}


_WORDS = _word_lists()
VERBS, MASS_NOUNS, PLURALS = _WORDS["verbs"], _WORDS["mass_nouns"], _WORDS["plurals"]
ARTICLES, ADJECTIVES, PREPOSITIONS = (
    _WORDS["articles"],
    _WORDS["adjectives"],
    _WORDS["prepositions"],
)
EVENTS = _WORDS["events"]
JOINING, SOUNDING, CONTINUING = _WORDS["joining"], _WORDS["sounding"], _WORDS["continuing"]
# Names of sounds that imply a verb.
OWN_VERB = {"rain": "fall", "wind": "blow", "thunder": "rumble"}
_NAMING = re.compile(r"^(the|a|an) (sounds?|noises?|recordings?)\b")


@dataclass(frozen=True)
class Phrase:
    """A sound in the forms sentences need.

    noun:       what is heard: "a dog barking", "rain", "the toll of a bell".
    statements: what happens: "a dog barks", "a dog is barking"; empty for a bare name.
    verbal:     the noun ends in an action, so that adverbs may follow it.
    """

    noun: str
    statements: tuple[str, ...]
    verbal: bool


@lru_cache(maxsize=65536)
def phrase_of(caption: str) -> Phrase:
    """Read a caption."""
    text = tidy(caption)
    words = text.split()
    whole = _NAMING.match(text) or "," in text or not JOINING.isdisjoint(words)
    if not whole:
        for reader in (_read_be, _read_finite, _read_participle, _read_own_verb):
            phrase = reader(words)
            if phrase is not None:
                return phrase
    return Phrase(text, (), verbal=False)


def tidy(caption: str) -> str:
    """On one line, without closing punctuation or a sentence's capital (names keep theirs)."""
    text = " ".join(caption.split()).strip(" .,;:!?")
    first = text.split(" ", 1)[0]
    if first[1:] == first[1:].lower() and (len(first) > 1 or first == "A"):
        text = text[:1].lower() + text[1:]
    return text


def third_person(verb: str) -> str:
    """bark -> barks, cry -> cries, buzz -> buzzes."""
    if re.search(r"(s|x|z|ch|sh|[^aeiou]o)$", verb):
        return verb + "es"
    if re.search(r"[^aeiou]y$", verb):
        return verb[:-1] + "ies"
    return verb + "s"


def participle(verb: str) -> str:
    """bark -> barking, rattle -> rattling, drip -> dripping, die -> dying."""
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    if verb.endswith("e") and not verb.endswith(("ee", "oe")):
        return verb[:-1] + "ing"
    # A single vowel (u after q is none) before a single final consonant doubles the consonant.
    if re.fullmatch(r"(?:[^aeiou]|(?<=q)u)*[aeiou][^aeiouwxy]", verb):
        return verb + verb[-1] + "ing"
    return verb + "ing"


_FROM_THIRD = {third_person(verb): verb for verb in sorted(VERBS)}
_FROM_PARTICIPLE = {participle(verb): verb for verb in sorted(VERBS)}
_BASE = {verb: verb for verb in sorted(VERBS)}


def is_verb(word: str) -> bool:
    """Whether a word is a form of one of our verbs; it may also be a noun: "barks"."""
    return any(word in table for table in (_BASE, _FROM_THIRD, _FROM_PARTICIPLE))


def is_plural(words: list[str]) -> bool:
    """Whether a noun phrase takes a plural verb."""
    if not words or (words[0] in ("a", "an", "one") and "and" not in words):
        return False
    if "and" in words[1:-1]:
        return True
    if words[0] in _FROM_PARTICIPLE and len(words) > 1 and words[1] in ARTICLES:
        return False  # "opening a can": the act is one
    end = next((i for i, word in enumerate(words) if i and word in PREPOSITIONS), len(words))
    head = words[end - 1]
    return head in PLURALS or bool(re.search(r"[^su]s$", head))


def _read_be(words: list[str]) -> Phrase | None:
    """SUBJECT is DONE / is DOING."""
    at = next((i for i, word in enumerate(words) if i and word in ("is", "are")), 0)
    if not at or at + 1 == len(words):
        return None
    subject, rest = words[:at], words[at + 1 :]
    if rest[0] in _FROM_PARTICIPLE and _is_subject(subject):
        return _read_participle([*subject, *rest])
    if rest[0].endswith("ing") and rest[0] != "being":
        return Phrase(_join(subject, rest), (_join(words),), verbal=True)
    done = rest[1:] if rest[0] == "being" else rest
    if not done or done[0] in ADJECTIVES or not re.search(r"([eowru]n|[tgkdm])$", done[0]):
        return None  # "the street is quiet": nothing is done
    be = words[at]
    return Phrase(
        _join(subject, "being", done),
        (_join(subject, be, done), _join(subject, be, "being", done)),
        verbal=True,
    )


def _read_finite(words: list[str]) -> Phrase | None:
    """SUBJECT DOES, or plural SUBJECT DO."""
    for at in range(1, len(words)):
        subject, word, rest = words[:at], words[at], words[at + 1 :]
        if not _is_subject(subject) or (rest and (rest[0] == "of" or rest[0] in SOUNDING)):
            continue  # "the calls of birds", "a door slam sound"
        if rest and rest[0] in _FROM_PARTICIPLE:
            continue  # "water drops falling": a plural noun before the real verb
        plural = is_plural(subject)
        table = _BASE if plural else _FROM_THIRD
        if word in table:
            return _acting(subject, table[word], _to_base(rest, table), plural)
    return None


def _read_participle(words: list[str]) -> Phrase | None:
    """SUBJECT DOING, SUBJECT being DONE."""
    for at in range(1, len(words)):
        subject, word, rest = words[:at], words[at], words[at + 1 :]
        if not _is_subject(subject) or (rest and rest[0] == "of"):
            continue
        if word == "being" and rest:
            return _read_be([*subject, "are" if is_plural(subject) else "is", "being", *rest])
        if word in _FROM_PARTICIPLE and not (rest and rest[0] in SOUNDING):
            verb = _FROM_PARTICIPLE[word]
            return _acting(subject, verb, _to_base(rest, _FROM_PARTICIPLE), is_plural(subject))
    return None


def _read_own_verb(words: list[str]) -> Phrase | None:
    """Rain, heavy rain: nouns that imply a verb."""
    verb = OWN_VERB.get(words[-1]) if words else None
    adjectives_only = all(word in ADJECTIVES for word in words[:-1])
    return _acting(words, verb, [], False) if verb and adjectives_only else None


def _is_subject(words: list[str]) -> bool:
    """A noun phrase that can act: with an article, plural, or of a noun that needs none."""
    if words[-1] in ARTICLES | ADJECTIVES | PREPOSITIONS | {"and", "or", "being"}:
        return False
    # "a man with a dog", "an engine and wind": who acts is not certain.
    if not (PREPOSITIONS - {"of"} | {"and"}).isdisjoint(words):
        return False
    if words[0] in _FROM_PARTICIPLE and (len(words) == 1 or words[1] in ARTICLES):
        return False  # "opening a can"
    return words[0] in ARTICLES or is_plural(words) or words[-1] in MASS_NOUNS


def _acting(subject: list[str], verb: str, rest: list[str] | None, plural: bool) -> Phrase | None:
    """The forms of SUBJECT VERB REST, with "and VERB" in the rest following the first verb."""
    if rest is None:
        return None
    second = [i > 0 and rest[i - 1] == "and" and word in VERBS for i, word in enumerate(rest)]
    acting = [
        participle(word) if is_verb else word for word, is_verb in zip(rest, second, strict=True)
    ]
    stated = [
        third_person(word) if is_verb else word for word, is_verb in zip(rest, second, strict=True)
    ]
    finite, be = (_join(verb, rest), "are") if plural else (_join(third_person(verb), stated), "is")
    return Phrase(
        _join(subject, participle(verb), acting),
        (_join(subject, finite), _join(subject, be, participle(verb), acting)),
        verbal=True,
    )


def _to_base(rest: list[str], table: dict[str, str]) -> list[str] | None:
    """The rest with the verb of "and VERBS" in its base form; None if "and" joins two things."""
    base = list(rest)
    for i, word in enumerate(rest):
        if i and rest[i - 1] == "and":
            if word in PREPOSITIONS or word.endswith("ly"):
                continue  # "up and down"
            if word not in table:
                return None
            base[i] = table[word]
    return base if not rest or rest[-1] != "and" else None


def _join(*parts: str | list[str]) -> str:
    return " ".join(part if isinstance(part, str) else " ".join(part) for part in parts if part)
