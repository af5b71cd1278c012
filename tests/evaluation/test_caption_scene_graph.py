"""What captions mean, read into graphs, and how alike two graphs are."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffsound.evaluation.spice import scene_graph, scene_graph_score


def graph(text: str) -> set[tuple[str, ...]]:
    """ "dog, bark, dog bark, rain on roof" -> the facts."""
    return {tuple(fact.split()) for fact in text.split(", ")}


@pytest.mark.parametrize(
    ("caption", "facts"),
    [
        ("a dog barks", "dog, bark, dog bark"),
        ("the bark of a dog", "dog, bark, dog bark"),
        ("A barking dog.", "dog, bark, dog bark"),
        ("dog bark", "dog, bark, dog bark"),
        ("dogs are barking", "dog, bark, dog bark"),
        ("the sound of a dog barking", "dog, bark, dog bark"),
        ("dog barking sound effect", "dog, bark, dog bark"),
        ("dogs bark loudly", "dog, bark, dog bark, bark loud"),
        ("a small dog barks at a car", "dog, bark, car, dog bark, dog small, dog at car"),
        ("a dog barks and howls", "dog, bark, howl, dog bark, dog howl"),
        ("a man and a woman talk", "man, woman, talk, man talk, woman talk"),
        ("a dog barks, then a man speaks", "dog, bark, man, talk, dog bark, man talk"),
        ("birds chirp while dogs bark", "bird, chirp, dog, bark, bird chirp, dog bark"),
        ("birds chirp and dogs bark", "bird, chirp, dog, bark, bird chirp, dog bark"),
        ("rain with thunder rumbling", "rain, thunder, rumble, thunder rumble"),
        ("the sound of rain on a roof", "rain, roof, rain on roof"),
        ("someone saws wood", "person, saw, wood, person saw, wood saw"),
        ("wood is being sawed", "wood, saw, wood saw"),
        ("a metal shield is struck", "shield, hit, shield metal, shield hit"),
        ("ringing church bells", "bell, ring, bell church, bell ring"),
        ("opening a can", "can, open, can open"),
        ("a flock of birds chirping", "bird, chirp, bird chirp"),
        ("footsteps on gravel", "footstep, gravel, footstep on gravel"),
        ("a series of knocks on a wooden door", "hit, door, door wood, hit on door"),
        ("a man in a car speaks", "man, car, talk, man talk, man in car"),
        ("a dog barks in the distance", "dog, bark, dog bark, bark distant"),
        ("heavily", "heavy"),
    ],
)
def test_reads(caption: str, facts: str) -> None:
    assert scene_graph(caption) == graph(facts)


def test_paraphrases_have_the_same_graph() -> None:
    assert scene_graph_score("kids are laughing", ["a child laughs"]) == 1.0
    assert scene_graph_score("A motorbike revs", ["a motorcycle accelerating"]) == 1.0


def test_the_score_by_hand() -> None:
    # cat, bark, (cat, bark) against dog, bark, (dog, bark): one of three on both sides.
    assert scene_graph_score("a cat barks", ["a dog barks"]) == pytest.approx(1 / 3)
    # dog, bark, (dog, bark) against these and howl, (dog, howl): precision 1, recall 3/5.
    both = ["a dog barks", "a dog howls"]
    assert scene_graph_score("a dog barks", both) == pytest.approx(2 * 3 / (3 + 5))


def test_captions_without_common_facts_score_zero() -> None:
    assert scene_graph_score("rain on a roof", ["a dog barks"]) == 0.0
    assert scene_graph_score("", ["a dog barks"]) == 0.0
    assert scene_graph_score("a dog barks", [""]) == 0.0


WORDS = st.sampled_from(
    re.findall(
        r"\S+",
        "a the dog dogs barks barking bark loud loudly and with of in as man talking is being "
        "sawed sound , then rain ringing bells several quickly by",
    )
)


@given(st.lists(WORDS, max_size=14).map(" ".join), st.lists(WORDS, max_size=14).map(" ".join))
def test_any_words_can_be_read(first: str, second: str) -> None:
    score = scene_graph_score(first, [second])
    assert 0.0 <= score <= 1.0
    assert score == scene_graph_score(second, [first])
    assert scene_graph_score(first, [first]) == 1.0
    assert all(1 <= len(fact) <= 3 and all(fact) for fact in scene_graph(first))


@given(st.text(max_size=80))
def test_any_text_can_be_read(text: str) -> None:
    assert scene_graph_score(text, [text]) == 1.0
