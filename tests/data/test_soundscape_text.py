"""Captions of scenes: every sound named, relations in the right order, wording varied."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffsound.data.soundscape_text import (
    AGAIN,
    FAR,
    Heard,
    Outline,
    caption_of,
    captions_of,
    fitting,
)

# One word of each that no template contains, and a verb form that shows.
SOUNDS = {
    "dog": ("a dog barks", "a dog barking"),
    "bell": ("a bell rings", "the toll of a bell"),
    "horn": ("a car horn honking",),
    "cough": ("a cough",),
}
BED = Heard(("rain falls",))


def heard(name: str, **how: bool) -> Heard:
    return Heard(SOUNDS[name], **how)


@st.composite
def outlines(draw) -> tuple[Outline, list[list[str]]]:
    names = draw(st.permutations(sorted(SOUNDS)))
    sizes = draw(st.sampled_from([(1,), (2,), (1, 1), (2, 1), (1, 2), (1, 1, 1), (2, 1, 1)]))
    moments, order = [], []
    for size in sizes:
        group, names = names[:size], names[size:]
        flags = [(draw(st.booleans()), draw(st.booleans())) for _ in group]
        moments.append(
            tuple(
                heard(name, distant=d, repeated=r)
                for name, (d, r) in zip(group, flags, strict=True)
            )
        )
        order.append(list(group))
    return Outline(tuple(moments), draw(st.sampled_from([None, BED]))), order


@given(outlines(), st.integers(0, 10_000))
def test_every_sound_is_named_once_and_in_true_order(case, seed) -> None:
    outline, order = case
    text = caption_of(outline, np.random.default_rng(seed))
    names = [name for moment in order for name in moment]
    for name in names:
        assert len(re.findall(rf"\b{name}\b", text)) == 1
    assert ("rain" in text) == (outline.background is not None)
    # "B after A" is the only wording that turns the order round; "after A, B" keeps it.
    if len(order) > 1:
        turned = re.search("(?<!,) after ", text) is not None
        places = [max(text.index(name) for name in moment) for moment in order]
        starts = [min(text.index(name) for name in moment) for moment in order]
        for i in range(len(order) - 1):
            if turned:
                assert starts[i] > places[i + 1]
            else:
                assert places[i] < starts[i + 1]
        assert re.search(r"\b(then|before|after|followed by|finally)\b", text)
    assert "  " not in text
    assert text == text.strip()


@given(outlines(), st.integers(0, 10_000))
def test_distance_and_repetition_are_said_exactly_when_true(case, seed) -> None:
    outline, _ = case
    text = caption_of(outline, np.random.default_rng(seed))
    sounds = [sound for moment in outline.moments for sound in moment]
    said = len(re.findall("|".join([*FAR, r"\bdistant\b"]), text))
    assert said == sum(sound.distant for sound in sounds)
    assert len(re.findall("|".join(AGAIN), text)) == sum(sound.repeated for sound in sounds)


def test_all_relations_of_the_language_occur() -> None:
    rng = np.random.default_rng(0)
    sequence = Outline(((heard("dog"),), (heard("bell"),)))
    together = Outline(((heard("dog"), heard("bell")),))
    over = Outline(((heard("dog", distant=True, repeated=True),),), BED)
    texts = " | ".join(caption_of(o, rng) for o in (sequence, together, over) for _ in range(150))
    for words in (
        "a dog barks, then a bell rings",
        "a dog barks before a bell rings",
        "a dog barking followed by the toll of a bell",
        "a bell rings after a dog barks",
        "a dog barks while a bell rings",
        "repeatedly in the distance",
        "rain falls while a dog",
        "in the background",
    ):
        assert words in texts


def test_captions_are_distinct_and_seeded() -> None:
    outline = Outline(((heard("dog"),), (heard("horn"),)), BED)
    captions = captions_of(outline, 6, np.random.default_rng(3))
    assert len(captions) == len(set(captions)) == 6
    assert captions == captions_of(outline, 6, np.random.default_rng(3))
    only = captions_of(Outline(((heard("cough"),),)), 5, np.random.default_rng(0))
    assert only == ("a cough",)


@pytest.mark.parametrize("seed", range(20))
def test_distance_is_not_said_twice(seed) -> None:
    far = Heard(("a dog barking in the distance", "a distant dog"), distant=True)
    text = caption_of(Outline(((far,),)), np.random.default_rng(seed))
    assert len(re.findall("distan", text)) == 1


def test_descriptions_and_keywords_do_not_enter_sentences() -> None:
    described = ("the sound of a hen clucking", "hen", "hen sound effect", "A recording of hens.")
    assert fitting(described) == ("a hen clucking", "hens")
    assert fitting(("hen",)) == ("hen",)
    assert fitting(("rain", "applause", "hand sawing")) == ("rain", "applause", "hand sawing")
