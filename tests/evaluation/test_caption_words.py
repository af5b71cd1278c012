"""Words as published metrics count them: ours against Stanford's; the captioner's numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffsound.errors import DataError
from diffsound.judges.captioner import END, PAD, START, UNKNOWN, CaptionTokenizer
from diffsound.text.ptb import ptb_words

GOLDEN = json.loads((Path(__file__).parent / "golden" / "stanford_words.json").read_text("utf-8"))


@pytest.mark.parametrize("item", GOLDEN, ids=lambda item: item["caption"][:30])
def test_words_are_those_of_stanfords_tokenizer(item: dict[str, str]) -> None:
    assert " ".join(ptb_words(item["caption"])) == item["words"]


@given(st.text(max_size=60))
def test_any_text_gives_words_without_spaces(text: str) -> None:
    words = ptb_words(text)
    assert all(word and not any(letter.isspace() for letter in word) for word in words)
    assert ptb_words(" ".join(text.split())) == words


def test_numbers_words_by_how_often_they_are_said() -> None:
    tokenizer = CaptionTokenizer.build(["A dog barks.", "a cat", "A dog"])
    assert tokenizer.words == ("a", "dog", "barks", "cat")
    assert len(tokenizer) == 8
    assert tokenizer.encode("a zebra barks") == [4, UNKNOWN, 6]
    assert CaptionTokenizer.build(["a dog", "a cat"], min_count=2).words == ("a",)


def test_batches_run_from_start_to_end() -> None:
    tokenizer = CaptionTokenizer(["a", "dog", "barks"])
    assert tokenizer.batch(["a dog barks", "dog"], longest=2).tolist() == [
        [START, 4, 5, END],
        [START, 5, END, PAD],
    ]


@given(st.lists(st.sampled_from(["a", "dog", "barks", "far-off"]), max_size=8))
def test_what_is_encoded_is_decoded(words: list[str]) -> None:
    tokenizer = CaptionTokenizer(["a", "dog", "barks", "far-off"])
    text = " ".join(words)
    assert tokenizer.decode([START, *tokenizer.encode(text), END, 5, PAD]) == text


@pytest.mark.parametrize("words", [[], ["a", "a"]])
def test_no_words_or_a_word_twice_is_refused(words: list[str]) -> None:
    with pytest.raises(DataError, match="each of them once"):
        CaptionTokenizer(words)
