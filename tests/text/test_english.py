"""Captions read into the forms that sentences need."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffsound.text.english import VERBS, participle, phrase_of, third_person, tidy


@pytest.mark.parametrize(
    ("verb", "does", "doing"),
    [
        ("bark", "barks", "barking"),
        ("rattle", "rattles", "rattling"),
        ("drip", "drips", "dripping"),
        ("squeal", "squeals", "squealing"),
        ("squish", "squishes", "squishing"),
        ("cry", "cries", "crying"),
        ("play", "plays", "playing"),
        ("die", "dies", "dying"),
        ("buzz", "buzzes", "buzzing"),
        ("echo", "echoes", "echoing"),
        ("moo", "moos", "mooing"),
        ("flow", "flows", "flowing"),
        ("open", "opens", "opening"),
        ("hammer", "hammers", "hammering"),
        ("rev", "revs", "revving"),
        ("wheeze", "wheezes", "wheezing"),
        ("quack", "quacks", "quacking"),
    ],
)
def test_verb_forms(verb, does, doing) -> None:
    assert third_person(verb) == does
    assert participle(verb) == doing


def test_verb_forms_are_unambiguous() -> None:
    assert len({third_person(verb) for verb in VERBS}) == len(VERBS)
    # whir and whirr are one verb in two spellings.
    assert len({participle(verb) for verb in VERBS - {"whirr"}}) == len(VERBS) - 1


@pytest.mark.parametrize(
    ("caption", "noun", "statements"),
    [
        ("A dog barks.", "a dog barking", ("a dog barks", "a dog is barking")),
        ("a dog barking", "a dog barking", ("a dog barks", "a dog is barking")),
        ("a dog is barking", "a dog barking", ("a dog barks", "a dog is barking")),
        ("birds chirp", "birds chirping", ("birds chirp", "birds are chirping")),
        ("sheep bleating", "sheep bleating", ("sheep bleat", "sheep are bleating")),
        ("a sheep bleating", "a sheep bleating", ("a sheep bleats", "a sheep is bleating")),
        (
            "a person knocks on a wooden door",
            "a person knocking on a wooden door",
            ("a person knocks on a wooden door", "a person is knocking on a wooden door"),
        ),
        (
            "a toilet is flushed",
            "a toilet being flushed",
            ("a toilet is flushed", "a toilet is being flushed"),
        ),
        (
            "dice are thrown on a table",
            "dice being thrown on a table",
            ("dice are thrown on a table", "dice are being thrown on a table"),
        ),
        (
            "a can being opened",
            "a can being opened",
            ("a can is opened", "a can is being opened"),
        ),
        (
            "a fire crackles and burns",
            "a fire crackling and burning",
            ("a fire crackles and burns", "a fire is crackling and burning"),
        ),
        (
            "pigs grunting and squealing",
            "pigs grunting and squealing",
            ("pigs grunt and squeal", "pigs are grunting and squealing"),
        ),
        (
            "a slide whistle goes up and down",
            "a slide whistle going up and down",
            ("a slide whistle goes up and down", "a slide whistle is going up and down"),
        ),
        ("an engine is accelerating", "an engine accelerating", ("an engine is accelerating",)),
        (
            "drops of water falling",
            "drops of water falling",
            ("drops of water fall", "drops of water are falling"),
        ),
        ("heavy rain", "heavy rain falling", ("heavy rain falls", "heavy rain is falling")),
    ],
)
def test_sentences_are_read(caption, noun, statements) -> None:
    phrase = phrase_of(caption)
    assert phrase.noun == noun
    assert phrase.statements == statements
    assert phrase.verbal


@pytest.mark.parametrize(
    "caption",
    [
        "applause",
        "a cough",
        "a ticking clock",
        "a running vacuum cleaner",
        "a resonant ringing tone",
        "the barking of a dog",
        "the cries of a baby",
        "the sound of wind blowing",
        "keyboard typing",
        "opening a can",
        "chirping birds",
        "plastic clicking of a puzzle cube being turned",
        "a man speaks and then whistles",
        "an engine running and a horn",
        "a train ride, wheels rattling on the rails",
        "footsteps on gravel",
        "insects sound effect",
        "a recording of keyboard typing",
    ],
)
def test_names_of_sounds_stay_as_they_are(caption) -> None:
    phrase = phrase_of(caption)
    assert phrase.noun == caption
    assert phrase.statements == ()
    assert not phrase.verbal


def test_tidy_keeps_names_and_drops_sentence_marks() -> None:
    assert tidy("  A dog\nbarks. ") == "a dog barks"
    assert tidy("V8 engine") == "v8 engine"
    assert tidy("TV static!") == "TV static"
    assert tidy("") == ""


WORDS = ["a", "the", "dogs", "water", "barks", "bark", "barking", "is", "are", "being", "opened",
         "and", "of", "in", "loud", "then", ",", "", "sound", "é", "X"]  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=7))
def test_any_words_are_read_without_failing(words) -> None:
    phrase = phrase_of(" ".join(words))
    for text in (phrase.noun, *phrase.statements):
        assert text == " ".join(text.split())
