"""Numbers and lengths in a sentence."""

from __future__ import annotations

import pytest

from diffsound.text.scene import Voice, read_count, read_scene, read_seconds, stretch


@pytest.mark.parametrize(
    ("text", "event", "count"),
    [
        ("a dog barks twice", "a dog barks", 2),
        ("A dog barks three times.", "a dog barks", 3),
        ("someone knocks twice on a door", "someone knocks on a door", 2),
        ("two knocks", "a knock", 2),
        ("three loud claps", "a loud clap", 3),
        ("two door slams", "a door slam", 2),
        ("a couple of explosions", "an explosion", 2),
        ("a single gunshot", "a gunshot", 1),
        ("a glass breaks once", "a glass breaks", 1),
        ("a clap", "a clap", 1),
        ("a knock on a door", "a knock on a door", 1),
        ("ten footsteps on gravel", "a footstep on gravel", 10),
    ],
)
def test_counts_are_read(text: str, event: str, count: int) -> None:
    assert read_count(text) == (event, count)


@pytest.mark.parametrize(
    "text",
    [
        "a dog barks",
        "two dogs bark",
        "two dogs barking",
        "a fire",
        "birds sing all at once",
        "once upon a time",
        "99 beeps",
        "a drop of water falls",
        "a click and a clack",
        "claps",
    ],
)
def test_what_is_no_count_is_left_alone(text: str) -> None:
    assert read_count(text) == (text, None)


@pytest.mark.parametrize(
    ("text", "rest", "seconds"),
    [
        ("rain for 8 seconds", "rain", 8.0),
        ("rain for about five seconds", "rain", 5.0),
        ("2.5 seconds of rain", "rain", 2.5),
        ("a 3-second beep", "a beep", 3.0),
        ("a dog barks for 4 s", "a dog barks", 4.0),
        ("rain for days", "rain for days", None),
    ],
)
def test_seconds_are_read(text: str, rest: str, seconds: float | None) -> None:
    assert read_seconds(text) == (rest, seconds)


def test_long_and_short_stretch_a_sound() -> None:
    assert stretch("a quick beep") < stretch("a beep") == 1.0 < stretch("a long beep")
    assert stretch("a train a long way off") == 1.0


def test_amounts_belong_to_their_part_of_a_scene() -> None:
    assert read_scene("rain for 6 seconds, then a dog barks twice in the distance") == (
        Voice("rain", 0, seconds=6.0),
        Voice("a dog barks", 1, distant=True, count=2),
    )
    whole = "a dog barks twice, then growls"
    assert read_scene(whole) == (Voice(whole),)
