"""Caption metrics against pycocoevalcap's own figures; what cannot run says so."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocoevalcap.cider.cider import Cider

import spice_stub
from diffsound.errors import DiffsoundError, InputError
from diffsound.evaluation import spice
from diffsound.evaluation.captions import CaptionScore, CiderD, caption_scores
from diffsound.evaluation.spice import java

SAID = [
    "a dog barks loudly",
    "rain falls on a tin roof",
    "a man is talking and typing on a keyboard",
    "wind",
]
TRUTH = [
    ["A dog is barking.", "A dog barks, then howls"],
    ["Rain's falling on a roof", "Heavy rain"],
    ["A man talks while he types on a computer keyboard"],
    ["A car's engine idles", "An engine runs"],
]
# By pycocoevalcap 1.2 itself, its Java tokenizer included.
REFERENCE = {
    "bleu_1": 0.5164247858033922,
    "bleu_2": 0.3726974863723998,
    "bleu_3": 0.20951179011793597,
    "bleu_4": 2.9827737169525286e-05,
    "rouge_l": 0.4604014041514042,
    "cider": 1.2821854954054908,
}
METEOR = (0.28912234586510205, 0.34152569927673665, 0.24276858116899372, 0.0)


def test_the_published_figures() -> None:
    scores = caption_scores(SAID, TRUTH, metrics=tuple(REFERENCE))
    assert list(scores) == list(REFERENCE)
    for name, expected in REFERENCE.items():
        assert scores[name].value == pytest.approx(expected, rel=1e-9), name
        assert len(scores[name].each) == 4
    assert scores["cider"].each == pytest.approx(
        [2.76007241, 1.14607193, 1.22259765, 0.0], abs=1e-8
    )


def test_meteor_runs_in_java_or_says_that_java_is_missing() -> None:
    score = caption_scores(SAID, TRUTH, metrics=["meteor"])["meteor"]
    if java() is None:
        assert score == CaptionScore(None, reason="needs Java")
    else:
        assert score.each == pytest.approx(METEOR, rel=1e-9)
        assert score.value == pytest.approx(0.228883379719031, rel=1e-9)


@pytest.fixture
def broken_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'no memory' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))


@pytest.mark.usefixtures("broken_java")
def test_a_failing_meteor_is_reported() -> None:
    with pytest.raises(DiffsoundError, match="METEOR's Java program failed"):
        caption_scores(SAID, TRUTH, metrics=["meteor"])


@pytest.mark.usefixtures("broken_java")
def test_a_failing_spice_is_reported(jars: Path) -> None:
    with pytest.raises(DiffsoundError, match="SPICE failed: no memory"):
        caption_scores(SAID, TRUTH, metrics=["spice"], corenlp=jars)


def test_unavailable_metrics_give_reasons_not_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(spice.FOLDER_VARIABLE, raising=False)
    scores = caption_scores(SAID, TRUTH, metrics=["spice", "meteor", "scene_graph"])
    assert scores["meteor"] == CaptionScore(None, reason="needs Java")
    assert scores["spice"].value is None
    assert "Stanford CoreNLP 3.6.0 jars" in scores["spice"].reason
    assert 0 < scores["scene_graph"].value < 1


def test_one_clip_has_no_cider() -> None:
    scores = caption_scores(["a dog"], [["a dog"]], metrics=["cider", "bleu_1"])
    assert scores["cider"].value is None
    assert "two clips or more" in scores["cider"].reason
    assert scores["bleu_1"].value == pytest.approx(1.0)


def test_an_empty_caption_scores_nothing() -> None:
    scores = caption_scores(["", "a dog"], [["a dog"], ["a dog"]], metrics=tuple(REFERENCE))
    for score in scores.values():
        assert score.each[0] == pytest.approx(0.0, abs=1e-6)
        assert score.each[1] >= score.each[0]


@pytest.mark.parametrize(
    ("said", "truth", "metrics", "message"),
    [
        ([], [], ["cider"], "no captions"),
        (["a"], [["a"], ["b"]], ["cider"], "as many lists of references"),
        (["a", "b"], [["a"], []], ["cider"], "caption 1 has no list"),
        (["a"], ["a"], ["cider"], "caption 0 has no list"),
        (["a"], [["a"]], ["spider"], "unknown caption metric 'spider'"),
    ],
)
def test_bad_input_is_reported(said, truth, metrics, message) -> None:
    with pytest.raises(InputError, match=message):
        caption_scores(said, truth, metrics=metrics)


WORD = st.sampled_from(["a", "dog", "cat", "barks", "meows", "loudly", "in", "the", "rain"])
SENTENCE = st.lists(WORD, max_size=9).map(" ".join)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(SENTENCE, st.lists(SENTENCE, min_size=1, max_size=3)), min_size=2, max_size=5
    )
)
def test_cider_agrees_with_pycocoevalcap(items: list[tuple[str, list[str]]]) -> None:
    truth = dict(enumerate(refs for _, refs in items))
    if not any(ref.split() for refs in truth.values() for ref in refs):
        return  # the library's own check fails without a single n-gram
    _, expected = Cider().compute_score(truth, {i: [said] for i, (said, _) in enumerate(items)})
    cider = CiderD(truth.values())
    for number, (said, refs) in enumerate(items):
        assert cider.score(said, refs) == pytest.approx(expected[number], abs=1e-9)


def test_cider_ranks_the_sentences_of_one_prompt() -> None:
    corpus = [["a dog barks"], ["a cat meows"], ["rain on a roof"], ["a car drives by"]]
    cider = CiderD(corpus)
    said = ["a dog barks", "a dog barks loudly", "a dog", "a cat", ""]
    scores = [cider.score(sentence, ["a dog barks"]) for sentence in said]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > 7
    assert scores[-1] == 0
    with pytest.raises(InputError, match="at least two clips"):
        CiderD([["a dog"]])
    with pytest.raises(InputError, match="at least one reference"):
        cider.score("a", [])


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    for name in spice.JARS:
        (tmp_path / name).touch()
    return tmp_path


def test_spice_needs_a_whole_folder(
    jars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(spice.FOLDER_VARIABLE, raising=False)
    assert spice.corenlp_folder() is None
    monkeypatch.setenv(spice.FOLDER_VARIABLE, str(jars))
    assert spice.corenlp_folder() == jars
    (jars / spice.JARS[1]).unlink()
    with pytest.raises(InputError, match=r"has no stanford-corenlp-3\.6\.0-models\.jar"):
        caption_scores(SAID, TRUTH, metrics=["spice"])


def test_the_command_that_runs_spice(jars: Path) -> None:
    command = spice.spice_command("java", jars, Path("in.json"), Path("out.json"))
    classpath = command[command.index("-cp") + 1]
    for part in ("spice-1.0.jar", "stanford-corenlp-3.6.0-models.jar", str(jars)):
        assert part in classpath
    where = command.index(spice.MAIN_CLASS)
    assert command[where + 1 :] == ["in.json", "-out", "out.json", "-subset", "-silent"]


def test_spice_is_started_and_misses_only_what_is_missing(jars: Path) -> None:
    """With empty jars SPICE's own program begins, then asks for CoreNLP's classes."""
    reason = "edu/stanford/nlp" if java() else "needs Java"
    with pytest.raises(DiffsoundError, match=reason):
        spice.spice_scores(["a dog"], [["a dog"]], jars)


@pytest.mark.skipif(spice_stub.JAVAC is None, reason="a SPICE is compiled: needs a JDK")
def test_the_whole_call_of_spice(tmp_path: Path) -> None:
    """Questions to a Java program of its own and answers back, whatever the text."""
    folder = spice_stub.build(tmp_path / "spice")
    said = ["a dog barks", "", 'a "loud" noise\nbarks', "ein Hündchen bellt"]
    truth = [["the dog barks", "a dog"], ["rain"], ["a loud noise"], ["ein Hündchen"]]
    expected = [
        spice_stub.score("a dog barks", truth[0]),
        0.0,
        spice_stub.score("a loud noise barks", truth[2]),
        spice_stub.score("ein hündchen bellt", ["ein hündchen"]),
    ]
    scores = caption_scores(said, truth, metrics=["spice"], corenlp=folder)["spice"]
    assert scores.each == pytest.approx(expected)
    assert scores.value == pytest.approx(sum(expected) / 4)
    assert set(spice.checksums(folder)) == {spice.SPICE_JAR, *spice.JARS}


@pytest.mark.parametrize("place", ["", "lib", "stanford-corenlp-full-2015-12-09"])
def test_the_jars_may_lie_where_they_are_unpacked(tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir(exist_ok=True)
    for name in spice.JARS:
        (tmp_path / place / name).write_text(name)
    assert spice.corenlp_folder(tmp_path) == tmp_path
    command = spice.spice_command("java", tmp_path, Path("in.json"), Path("out.json"))
    for name in spice.JARS:
        assert str(tmp_path / place / name) in command[command.index("-cp") + 1]


def test_spices_answers_are_read_in_order() -> None:
    answers = [
        {"image_id": 1, "scores": {"All": {"f": 0.5}}},
        {"image_id": 0, "scores": {"All": {"f": None}}},
    ]
    random.Random(0).shuffle(answers)
    import json

    assert spice.read_answers(json.dumps(answers), 2) == [0.0, 0.5]
    with pytest.raises(DiffsoundError, match="no score for 1 of 3"):
        spice.read_answers(json.dumps(answers), 3)
    assert math.isclose(sum(spice.read_answers(json.dumps(answers), 2)), 0.5)
