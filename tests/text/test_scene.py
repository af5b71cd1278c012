"""Sentences read as scenes."""

import pytest
from numpy.random import default_rng

from diffsound.data.soundscape_text import Heard, Outline, caption_of
from diffsound.text.scene import MOST_CHARACTERS, Voice, read_scene

TWO = (Voice("a dog barks", 0), Voice("a cat meows", 1))


@pytest.mark.parametrize(
    "sentence",
    [
        "a dog barks, then a cat meows",
        "A dog barks and then a cat meows.",
        "a dog barks then a cat meows",
        "first a dog barks, then a cat meows",
        "a dog barks followed by a cat meows",
        "a dog barks, and finally a cat meows",
        "a dog barks before a cat meows",
        "a cat meows after a dog barks",
        "after a dog barks, a cat meows",
    ],
)
def test_connectives_of_sequence_give_two_moments(sentence: str) -> None:
    assert read_scene(sentence) == TWO


@pytest.mark.parametrize(
    "sentence",
    [
        "a dog barks while a cat meows",
        "a dog barks as a cat meows",
        "a dog barks and a cat meows",
        "a dog barks and a cat meows at the same time",
    ],
)
def test_connectives_of_simultaneity_give_one_moment(sentence: str) -> None:
    assert read_scene(sentence) == (Voice("a dog barks", 0), Voice("a cat meows", 0))


@pytest.mark.parametrize(
    "sentence",
    [
        "a dog barks with rain in the background",
        "rain in the background, a dog barks",
        "rain in the background, while a dog barks",
        "a dog barks over rain",
    ],
)
def test_a_background_lasts_throughout(sentence: str) -> None:
    assert read_scene(sentence) == (Voice("a dog barks", 0), Voice("rain", None))


def test_a_leading_while_clause_is_the_background() -> None:
    assert read_scene("while rain falls, a dog barks, then a cat meows") == (
        *TWO,
        Voice("rain falls", None),
    )


@pytest.mark.parametrize(
    ("sentence", "near"),
    [
        ("a dog barks in the distance", "a dog barks"),
        ("a dog barks far away", "a dog barks"),
        ("a distant owl hoots", "an owl hoots"),
        ("an old distant bell", "an old bell"),
        ("distant thunder", "thunder"),
        ("church bells from afar", "church bells"),
    ],
)
def test_words_of_distance_make_a_voice_distant(sentence: str, near: str) -> None:
    assert read_scene(sentence) == (Voice(near, 0, distant=True),)


def test_each_voice_has_its_own_distance() -> None:
    assert read_scene("rain, then a dog barks in the distance, then a door slams") == (
        Voice("rain", 0),
        Voice("a dog barks", 1, distant=True),
        Voice("a door slams", 2),
    )


def test_names_of_sounds_are_voices_too() -> None:
    assert read_scene("barking then meowing") == (Voice("barking", 0), Voice("meowing", 1))
    assert read_scene("dog bark then siren") == (Voice("dog bark", 0), Voice("siren", 1))


def test_a_background_does_not_include_earlier_events() -> None:
    assert read_scene("a dog barks followed by a cat meowing in the background and a click") == (
        Voice("a dog barks", 0),
        Voice("a cat meowing in the background and a click", 1),
    )


def test_a_list_of_actions_is_split_into_voices() -> None:
    assert read_scene("rain, thunder and wind") == tuple(
        Voice(name, 0) for name in ("rain", "thunder", "wind")
    )


@pytest.mark.parametrize(
    "sentence",
    [
        "a dog barks",
        "A dog barks.",
        "footsteps on gravel",
        "a dog barks and growls",
        "a dog barks, then growls",
        "a car starts, then drives away",
        "a siren approaches, then recedes",
        "a bus engine slowing down then turning",
        "a door creaks, then it slams",
        "a door creaks, then silence",
        "pots and pans clanging",
        "a plane flies over the city",
        "birds sing before dawn",
        "a man speaks while walking",
        "a train passes with a squeal",
        "bicycle spokes clicking as the wheel turns",
        "a guy with the flu keeps coughing",
        "planes landing one after another near the airport",
        "a glass gradually fills, the pitch rising",
        "[MASK] dog bark",
        "then",
        "in the distance",
        "…",
        "a dog barks, then " * 30 + "a cat meows",
    ],
)
def test_a_sentence_about_one_sound_stays_whole(sentence: str) -> None:
    assert read_scene(sentence) == (Voice(sentence),)


def test_long_texts_are_not_parsed() -> None:
    sentence = "a dog barks, then a cat meows" + " loudly" * 60
    assert len(sentence) > MOST_CHARACTERS
    assert read_scene(sentence) == (Voice(sentence),)


def test_hostile_texts_are_read_quickly() -> None:
    for piece in (" and ", " in the background ", ", then ", " as ", "a ", " before after while "):
        read_scene((piece * MOST_CHARACTERS)[:MOST_CHARACTERS])


@pytest.mark.parametrize("seed", range(20))
def test_captions_of_mixed_scenes_are_read_back(seed: int) -> None:
    """The writer of scenes and their reader agree, whichever of its wordings the writer takes."""
    dog, cat = Heard(("a dog barks",)), Heard(("a cat meows",), distant=True)
    voices = read_scene(caption_of(Outline(((dog,), (cat,))), default_rng(seed)))
    assert [voice.moment for voice in voices] == [0, 1]
    assert [voice.distant for voice in voices] == [False, True]
    assert "dog" in voices[0].text
    assert "cat" in voices[1].text
