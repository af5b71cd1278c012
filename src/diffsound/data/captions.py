"""Captions of a clip, made from its class, title, tags and own captions.

One caption per clip teaches a decoder that wording; several teach it the sound. Everything said is
true of the whole class (hand-written tables under `phrases/`), comes from the clip's own title
("Dog_bark_04.wav" is "dog bark"), or is another grammatical form of its own captions.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import yaml

from diffsound.data.record import Record
from diffsound.text.english import (
    ADJECTIVES,
    ARTICLES,
    JOINING,
    MASS_NOUNS,
    PREPOSITIONS,
    VERBS,
    is_plural,
    participle,
    phrase_of,
    third_person,
    tidy,
)
from diffsound.text.mbtg import clean_label

_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4}))")
_EXTENSION = re.compile(r"\.(?:wav|mp3|flac|ogg|aiff?|m4a|opus|wma|mp4)\b", re.IGNORECASE)
_BRACKETS = re.compile(r"\([^)]*\)|\[[^\]]*\]|\{[^}]*\}")
_MONTH = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_DATE = re.compile(rf"\b(?:\d+ ?)?(?:{_MONTH})[a-z]*\.? ?\d+", re.IGNORECASE)
_UNIT = re.compile(
    r"\b\d+(?:[.,]\d+)?\s*(?:k\s*hz|hz|k|bits?|kbps|mins?|minutes?|secs?|seconds?|s|bpm|db|watt|m)\b",
    re.IGNORECASE,
)
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")


@cache
def phrase_table(name: str) -> dict[str, Any]:
    """One of the YAML tables under `phrases/`."""
    text = files("diffsound.data").joinpath("phrases", f"{name}.yaml").read_text(encoding="utf-8")
    table: dict[str, Any] = yaml.safe_load(text)
    return table


def clean_title(title: str) -> str:
    """The words of a title or file name, lower-case, without numbers, dates, units and noise.

    >>> clean_title("Dog_bark_04.wav")
    'dog bark'
    >>> clean_title("20100423.hungry.cats.01")
    'hungry cats'
    >>> clean_title("Pig - Scream 5 - 96k Hz")
    'pig scream'
    >>> clean_title("creature: alien 03")
    'alien'
    >>> clean_title("glassBreak_stereo_44100Hz_v2 (freesound 1234).FLAC")
    'glass break'
    """
    text = _ESCAPE.sub(lambda match: chr(int(match[1] or match[2], 16)), title)
    text = unicodedata.normalize("NFKC", text)
    # Bilingual titles put English last; packs put their name before a colon.
    text = text.split(" / ")[-1].rsplit(": ", 1)[-1]
    text = _EXTENSION.sub(" ", _BRACKETS.sub(" ", text)).replace("_", " ")
    text = _UNIT.sub(" ", _DATE.sub(" ", text))
    text = _CAMEL.sub(" ", text)
    words = re.findall(r"[^\W\d_]+(?:['’][^\W\d_]+)*", text.lower())
    table = phrase_table("generic")
    noise, edges = set(table["noise"]), set(table["edges"])
    words = [word for word in words if word not in noise and (len(word) > 1 or word == "a")]
    while words and words[0] in edges - {"a", "an", "the"}:
        words.pop(0)
    while words and words[-1] in edges:
        words.pop()
    return " ".join(words)


# How many of a class's wordings take the manner of a title ("at night").
_MANNERED = 3
_MAX_TITLE_WORDS = 9
# "closing", but neither "spring" nor "ceiling".
_ACTING = re.compile(r"(?!building|ceiling)\w*[aeiouy]\w*ing")
_VOWEL = re.compile(r"(?!uk|uni|us|eu|one)[aeiou]")
_NAMES_SOUND = re.compile(r"\b(sounds?|noises?|recording|audio|effect)\b")


def captions_for(record: Record, n: int | None = None, asked: bool = False) -> tuple[str, ...]:
    """Distinct captions of a clip, its own first; none of them is a held-out prompt.

    n: largest number of captions. The clip's own come first; the others are drawn with a seed from
         the clip's id, so that clips of one class get different wordings, and a rerun the same.
    asked: also add sentences people may ask for the class with (`phrases/asked.yaml`). They teach
         which words mean the class; their details need not be true of the clip.
    """
    own = _distinct(tidy(caption) for caption in record.captions)
    wordings = [*own, *_made(record, own), *(_asked(record) if asked else ())]
    made = _distinct(wordings)[len(own) :]
    if n is not None:
        digest = hashlib.sha256(record.id.encode("utf-8", "surrogatepass")).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
        chosen = rng.permutation(len(made))[: max(n - len(own), 0)]
        made = [made[index] for index in sorted(chosen.tolist())]
    return tuple([*own, *made][:n])


def heldout_prompts() -> dict[str, list[str]]:
    """Prompts per ESC-50 class, in wordings that `captions_for` never produces."""
    return {label: list(prompts) for label, prompts in phrase_table("heldout").items()}


def caption_report(records: Iterable[Record]) -> dict[str, Any]:
    """Vocabulary, coverage and lengths of the records' captions, ready for JSON."""
    lengths: Counter[int] = Counter()
    words: Counter[str] = Counter()
    distinct: set[str] = set()
    per_clip: list[int] = []
    per_label: dict[str, set[str]] = {}
    for record in records:
        per_clip.append(len(record.captions))
        for label in record.labels:
            per_label.setdefault(label, set()).update(record.captions)
        for caption in record.captions:
            tokens = re.findall(r"[\w'-]+", caption.lower())
            lengths[len(tokens)] += 1
            words.update(tokens)
            distinct.add(caption)
    prompts = [prompt for wordings in heldout_prompts().values() for prompt in wordings]
    asked = {word for prompt in prompts for word in re.findall(r"[\w'-]+", prompt)}
    return {
        "clips": len(per_clip),
        "clips_without_caption": per_clip.count(0),
        "captions": sum(per_clip),
        "distinct_captions": len(distinct),
        "captions_per_clip": {
            "least": min(per_clip, default=0),
            "mean": round(sum(per_clip) / max(len(per_clip), 1), 2),
            "most": max(per_clip, default=0),
        },
        "labels": len(per_label),
        "labels_with_one_wording": sorted(
            label for label, wordings in per_label.items() if len(wordings) < 2
        ),
        "vocabulary": len(words),
        "words_used_once": sum(count == 1 for count in words.values()),
        "most_common_words": dict(words.most_common(30)),
        "heldout_words_seen": round(len(asked & set(words)) / max(len(asked), 1), 3),
        "caption_lengths": {str(length): lengths[length] for length in sorted(lengths)},
    }


def _made(record: Record, own: Sequence[str]) -> Iterator[str]:
    """Captions made for a clip, the most reliable and specific first."""
    title = clean_title(record.title)
    labels = [clean_label(label) for label in record.labels if re.search(r"[^\W_]", label)]
    entry = phrase_table("esc50").get(labels[0]) if len(labels) == 1 else None
    # A clip of another source has the label but perhaps not the class's usual sound (a pig may
    # squeal); its own caption knows better than the table.
    if entry is not None and (record.source == "esc50" or not own):
        yield from _class_wordings(entry, title)
        labels, own = [], [*own, entry["say"][0]]
    if title and _title_speaks(title, labels, own):
        yield title
    forms = [form for caption in own for form in _forms(caption)]
    yield from forms
    if forms and len(labels) == 1:
        # The captions have articles and verbs; the label is what people search for.
        yield from (labels[0], f"{labels[0]} sound effect")
    else:
        yield from _label_wordings(labels)
    if not labels and not own:
        fallback = title or " ".join(clean_title(tag) for tag in record.tags).strip()
        if fallback:
            yield from _label_wordings([fallback])


def _asked(record: Record) -> Sequence[str]:
    """How people may ask for the clip's class; only for ESC-50, whose clips are typical."""
    if record.source != "esc50" or len(record.labels) != 1:
        return ()
    wordings: Sequence[str] = phrase_table("asked").get(clean_label(record.labels[0]), ())
    return wordings


def _class_wordings(entry: dict[str, Any], title: str) -> Iterator[str]:
    say: list[str] = entry["say"]
    for pattern, wordings in entry.get("if", {}).items():
        if re.search(pattern, title):
            yield from wordings
    for manner, pattern in phrase_table("generic")["manner"].items():
        if manner not in entry.get("without", ()) and re.search(pattern, title):
            yield from (f"{wording} {manner}" for wording in say[:_MANNERED])
    yield from say


def _title_speaks(title: str, labels: Sequence[str], own: Sequence[str]) -> bool:
    """Whether a title is plain English about what the labels or captions name."""
    words = title.split()
    if not labels and not own:
        return True
    if not 2 <= len(words) <= _MAX_TITLE_WORDS or not _vocabulary().issuperset(words):
        return False
    named = {_stem(word) for text in (*labels, *own) for word in text.split()}
    return any(_stem(word) in named for word in words if word not in PREPOSITIONS | ARTICLES)


def _forms(caption: str) -> Iterator[str]:
    """Other grammatical forms of a caption, if it can be parsed reliably."""
    phrase = phrase_of(caption)
    if phrase.statements:
        yield from phrase.statements
        yield phrase.noun
    elif not _is_name(caption):
        return
    if _NAMES_SOUND.search(phrase.noun):
        return
    if not phrase.noun.startswith("the "):
        yield f"the sound of {phrase.noun}"
    if not phrase.statements:
        yield f"a recording of {phrase.noun}"


def _is_name(caption: str) -> bool:
    """A short phrase that names a sound, such as "a heavy thud" or "rattling chains"."""
    words = caption.split()
    clause = {"is", "are", "was", "were"} | JOINING
    return len(words) <= 8 and "," not in caption and clause.isdisjoint(words)


def _label_wordings(labels: Sequence[str]) -> Iterator[str]:
    """Plain wordings of labels that occur together, in no known order."""
    if not labels:
        return
    names = [_with_article(label) for label in labels]
    if len(labels) > 1:
        for ordered in (names, names[::-1]):
            listed = f"{', '.join(ordered[:-1])} and {ordered[-1]}"
            yield listed
            yield f"the sounds of {listed}"
        yield ", ".join(labels)
        return
    (label,), (name,) = labels, names
    yield label
    yield name
    if not _NAMES_SOUND.search(label):
        yield f"the sound of {name}"
        yield f"a recording of {name}"
        yield f"{label} sound effect"


def _with_article(label: str) -> str:
    """ "door closing" -> "a door closing"; "rain", "tapping on wood", "keys jangling" stay."""
    words = label.split()
    named = words[:-1] if len(words) > 1 and _ACTING.fullmatch(words[-1]) else words
    head = next((i for i, word in enumerate(named) if i and word in PREPOSITIONS), len(named)) - 1
    without = MASS_NOUNS | set(phrase_table("generic")["bare"])
    if (
        words[0] in ARTICLES
        or is_plural(named)
        or not without.isdisjoint((words[0], named[head]))
        or (head == 0 and _ACTING.fullmatch(words[0]))
        or not label[0].isalpha()
    ):
        return label
    return f"{'an' if _VOWEL.match(label) else 'a'} {label}"


def _distinct(captions: Iterable[str]) -> list[str]:
    """The captions without repeats and without held-out prompts."""
    seen: dict[str, str] = {}
    heldout = _heldout_keys()
    for caption in captions:
        key = _key(caption)
        if key and key not in heldout:
            seen.setdefault(" ".join(caption.lower().split()), caption)
    return list(seen.values())


def _key(caption: str) -> str:
    """A caption without articles, case and punctuation, for comparison."""
    words = re.findall(r"[^\W_]+", caption.lower())
    return " ".join(word for word in words if word not in {"a", "an", "the"})


@cache
def _heldout_keys() -> frozenset[str]:
    return frozenset(_key(prompt) for prompts in heldout_prompts().values() for prompt in prompts)


@cache
def _vocabulary() -> frozenset[str]:
    """The words a plain English title may have."""
    words = {*phrase_table("generic")["plain"], *phrase_table("generic")["edges"]}
    for entry in phrase_table("esc50").values():
        for wording in (*entry["say"], *(w for some in entry.get("if", {}).values() for w in some)):
            words.update(wording.split())
    forms = {form for verb in VERBS for form in (verb, third_person(verb), participle(verb))}
    return frozenset(words | forms | ARTICLES | ADJECTIVES | PREPOSITIONS | MASS_NOUNS)


def _stem(word: str) -> str:
    """A word without its ending, to match inflections: barks, barking, barked -> bark."""
    return re.sub(r"(?:ing|ed|es|s|e)$", "", word)
