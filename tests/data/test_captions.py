from __future__ import annotations

import doctest
import json
import re
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffsound.data import captions
from diffsound.data.captions import (
    _key,
    caption_report,
    captions_for,
    clean_title,
    heldout_prompts,
    phrase_table,
)

ESC50 = sorted(phrase_table("esc50"))


@dataclass(frozen=True)
class Clip:
    id: str = "clip"
    captions: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    title: str = ""
    source: str = ""


def _esc50(label: str, title: str = "") -> Clip:
    return Clip(labels=(label,), title=title, source="esc50")


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("Dog_bark_04.wav", "dog bark"),
        ("DogBARKING", "dog barking"),
        ("20100423.hungry.cats.01", "hungry cats"),
        (
            "01 21 Footsteps, sneakers on gravel and leaves",
            "footsteps sneakers on gravel and leaves",
        ),
        ("Pig - Scream 5 - 96k Hz", "pig scream"),
        ("12 soda can TLM 05 -AIFF 48:24", "soda can"),
        ("tos6(16.01.2009)", "tos"),
        ("Fireworks July 3, 2012", "fireworks"),
        ("sw brushing teeth", "brushing teeth"),
        ("impactsounds: impact Plate medium 002", "impact plate medium"),
        ("Books, Paper, Writing: Pen Writing 4", "pen writing"),
        ("Porsas r\\xf6hkii / A piglet oinking in the pen", "a piglet oinking in the pen"),
        ("Alarm Clock's alarm on", "alarm clock's alarm"),
        ("sea \\u200b\\u200bon the road, night, Rhodes", "sea on the road night rhodes"),
        ("grandfather clock ticking 60 seconds", "grandfather clock ticking"),
        ("20131209 mouse clicks OlympusLS10 xy", "mouse clicks"),
        ("rain, sm57", "rain"),
        ("P 47 Flyby", "flyby"),
        ("RAIN indoors", "rain indoors"),
        ("mañana_lluvia_03.flac", "mañana lluvia"),
        ("002", ""),
        ("", ""),
    ],
)
def test_titles_become_words(title: str, words: str) -> None:
    assert clean_title(title) == words


def test_doctest_examples_of_titles_pass() -> None:
    result = doctest.testmod(captions)
    assert result.attempted >= 5
    assert result.failed == 0


@given(st.text(max_size=60))
def test_any_title_becomes_plain_words(title: str) -> None:
    cleaned = clean_title(title)
    assert cleaned == " ".join(cleaned.split())
    assert not re.search(r"[\d_.,()]", cleaned)


@pytest.mark.parametrize("label", ESC50)
def test_every_class_has_eight_paraphrases_and_three_heldout_prompts(label: str) -> None:
    captions = captions_for(_esc50(label))
    assert len(captions) >= 8
    assert captions == captions_for(_esc50(label.replace(" ", "_")))
    heldout = heldout_prompts()[label]
    assert len(set(heldout)) == 3
    for caption in (*captions, *heldout):
        assert caption == caption.strip()
        assert caption == " ".join(caption.split())
        assert caption[0].islower()


def test_phrase_tables_hold_plain_words() -> None:
    """YAML reads a bare on, off, yes or no as a truth value."""
    tables = [phrase_table("generic")["noise"], phrase_table("generic")["plain"]]
    tables += [phrase_table("generic")["edges"], phrase_table("generic")["bare"]]
    tables += [*phrase_table("heldout").values(), *phrase_table("asked").values()]
    for entry in phrase_table("esc50").values():
        tables += [entry["say"], *entry.get("if", {}).values()]
    assert all(type(word) is str for table in tables for word in table)


def test_sentences_people_ask_with_come_last_and_only_for_esc50() -> None:
    plain, more = captions_for(_esc50("dog")), captions_for(_esc50("dog"), asked=True)
    assert more[: len(plain)] == plain
    assert set(phrase_table("asked")["dog"]) <= set(more)
    assert set(phrase_table("asked")["dog"]).isdisjoint(plain)
    # Another source's dog may whine; only its own caption knows.
    stranger = Clip(captions=("a dog whines",), labels=("dog",), source="folder")
    assert captions_for(stranger, asked=True) == captions_for(stranger)


def test_all_fifty_classes_have_asked_and_heldout_sentences() -> None:
    assert len(ESC50) == 50
    assert sorted(phrase_table("asked")) == ESC50
    assert min(map(len, phrase_table("asked").values())) >= 35
    assert sorted(heldout_prompts()) == ESC50


@pytest.mark.parametrize("label", ESC50)
def test_title_patterns_compile_and_add_new_wordings(label: str) -> None:
    entry = phrase_table("esc50")[label]
    assert set(entry) <= {"say", "if", "without"}
    for pattern, wordings in entry.get("if", {}).items():
        re.compile(pattern)
        assert wordings
        assert set(wordings).isdisjoint(entry["say"])
    assert set(entry.get("without", ())) <= set(phrase_table("generic")["manner"])


def test_no_training_caption_is_a_heldout_prompt() -> None:
    """Not even up to articles, case and punctuation, whatever the title says."""
    heldout = {_key(prompt) for prompts in heldout_prompts().values() for prompt in prompts}
    assert len(heldout) == 150
    for label in ESC50:
        entry = phrase_table("esc50")[label]
        written = [*entry["say"], *(w for some in entry.get("if", {}).values() for w in some)]
        written += phrase_table("asked")[label]
        assert heldout.isdisjoint(map(_key, written)), label
        assert heldout.isdisjoint(map(_key, captions_for(_esc50(label, "night distant farm"))))
    # Not when a source brings the very wording, either.
    clip = Clip(captions=("A hound woofing.", "a dog barks"), labels=("dog",), source="folder")
    assert "a dog barks" in captions_for(clip)
    assert heldout.isdisjoint(map(_key, captions_for(clip)))


@pytest.mark.parametrize(
    ("label", "title", "said", "unsaid"),
    [
        ("laughing", "evil laugh 19", "an evil laugh", "a woman laughs"),
        ("laughing", "Female Laughing", "a woman laughs", "an evil laugh"),
        ("rain", "Heavy rain - some people 1", "heavy rain falls", "light rain"),
        ("rain", "RAIN indoors", "rain heard from indoors", "rain falls indoors"),
        ("fireworks", "fireworks 2009 distant", "fireworks explode in the distance", "a firework"),
        (
            "dog",
            "Dog barking at night (nice reflection)",
            "a dog barks at night",
            "a small dog barks",
        ),
        ("footsteps", "footsteps on snow", "footsteps on snow", "footsteps on gravel"),
        ("coughing", "man Cough2", "a man coughs", "a woman coughs"),
        ("coughing", "woman cough", "a woman coughs", "a man coughs"),
        ("dog", "MABEL 1", "a dog barks", "mabel"),
    ],
)
def test_details_come_from_the_title_alone(label: str, title: str, said: str, unsaid: str) -> None:
    captions = captions_for(_esc50(label, title))
    assert said in captions
    assert unsaid not in captions
    assert said == phrase_table("esc50")[label]["say"][0] or said not in captions_for(_esc50(label))


@pytest.mark.parametrize(
    ("caption", "label", "expected"),
    [
        ("a switch is flipped", "switch", {"a switch being flipped", "switch"}),
        ("a bear growls", "bear", {"a bear growling", "a bear is growling"}),
        ("stones clatter", "stones", {"stones clattering", "the sound of stones clattering"}),
        ("a heavy thud", "thud", {"the sound of a heavy thud", "thud", "thud sound effect"}),
        ("rattling chains", "chain", {"the sound of rattling chains"}),
        ("the roar of a beast", "creature roar", {"a recording of the roar of a beast"}),
        ("the sound of a door", "door", {"a door", "a recording of a door"}),
        ("barking", "barking", {"the sound of barking"}),
    ],
)
def test_other_clips_get_forms_of_their_own_caption(
    caption: str, label: str, expected: set[str]
) -> None:
    captions = captions_for(Clip(captions=(caption,), labels=(label,), source="cc0sounds"))
    assert captions[0] == caption
    assert len(captions) >= 4
    assert expected <= set(captions)


def test_an_unparsed_caption_is_kept_as_it_is() -> None:
    written = "A man speaks while birds chirp in the background, and then a car passes by"
    assert captions_for(Clip(captions=(written,))) == ("a" + written[1:],)


def test_a_class_label_of_another_source_does_not_override_its_caption() -> None:
    clip = Clip(captions=("a pig squeals",), labels=("pig",), source="modsounds")
    assert not [caption for caption in captions_for(clip) if "grunt" in caption]
    assert [caption for caption in captions_for(replace(clip, captions=())) if "grunt" in caption]


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("Door closing", "a door closing"),
        ("alarm", "an alarm"),
        ("rain", "rain"),
        ("coins", "coins"),
        ("chopping wood", "chopping wood"),
        ("footstep on grass", "a footstep on grass"),
        ("Accelerating, revving, vroom", "accelerating"),
        ("Tapping on wood", "tapping on wood"),
        ("spring", "a spring"),
        ("Keys jangling", "keys jangling"),
        ("Ukulele", "a ukulele"),
        ("Static", "static"),
    ],
)
def test_labels_alone_make_captions(label: str, name: str) -> None:
    captions = captions_for(Clip(labels=(label,), source="audioset"))
    assert len(captions) >= 4
    assert f"the sound of {name}" in captions or name in phrase_table("esc50")


def test_several_labels_are_joined_without_claiming_an_order() -> None:
    clip = Clip(labels=("Bark", "Male speech, man speaking", "Rain"), source="audioset")
    captions = captions_for(clip)
    assert "a bark, a man speaking and rain" in captions
    assert "rain, a man speaking and a bark" in captions
    assert not re.search(r"\b(while|then|before|after|followed)\b", " ".join(captions))


def test_a_file_name_or_tags_alone_give_captions() -> None:
    assert "dog bark" in captions_for(Clip(title="Dog_bark_04.wav"))
    assert len(captions_for(Clip(title="Dog_bark_04.wav"))) >= 4
    assert "metal gate" in captions_for(Clip(title="0042.wav", tags=("metal", "gate")))
    assert captions_for(Clip(title="0042.wav")) == ()


def test_a_limited_number_keeps_own_captions_and_varies_between_clips() -> None:
    clip = replace(_esc50("dog"), captions=("a dog barks", "woof woof from a dog"))
    everything = captions_for(clip)
    chosen = {captions_for(replace(clip, id=str(number)), n=6) for number in range(40)}
    assert len(chosen) > 20
    for made in chosen:
        assert made[:2] == clip.captions
        assert len(made) == len(set(made)) == 6
        assert set(made) <= set(everything)
    assert captions_for(clip, n=6) == captions_for(clip, n=6)
    assert captions_for(clip, n=1) == ("a dog barks",)
    assert captions_for(clip, n=1000) == everything


@given(
    st.lists(st.text(max_size=30), max_size=3),
    st.lists(st.text(max_size=20), max_size=3),
    st.text(max_size=30),
)
def test_captions_from_any_fields_are_distinct_single_lines(
    captions: list[str], labels: list[str], title: str
) -> None:
    clip = Clip(captions=tuple(captions), labels=tuple(labels), title=title)
    made = captions_for(clip)
    assert len(made) == len({caption.lower() for caption in made})
    assert all(caption == " ".join(caption.split()) and caption for caption in made)
    assert made == captions_for(clip)


def test_the_caption_report_counts_clips_and_captions() -> None:
    clips = [
        Clip(captions=("a dog barks", "dog bark"), labels=("dog",)),
        Clip(captions=("a dog barks",), labels=("dog", "Bark")),
        Clip(labels=("rain",)),
    ]
    report = caption_report(clips)
    assert report["clips"] == 3
    assert report["clips_without_caption"] == 1
    assert (report["captions"], report["distinct_captions"]) == (3, 2)
    assert report["captions_per_clip"] == {"least": 0, "mean": 1.0, "most": 2}
    assert report["labels"] == 3
    assert report["labels_with_one_wording"] == ["Bark", "rain"]
    assert report["vocabulary"] == 4
    assert report["words_used_once"] == 1
    assert report["most_common_words"] == {"dog": 3, "a": 2, "barks": 2, "bark": 1}
    assert report["caption_lengths"] == {"2": 1, "3": 2}
    assert 0 < report["heldout_words_seen"] < 0.1
    assert json.loads(json.dumps(report)) == report
    assert caption_report([])["captions_per_clip"]["mean"] == 0
