from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffsound.errors import InputError
from diffsound.text import MAX_PROMPT_CHARS, clean_prompt, clean_text


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a dog barks", "a dog barks"),
        ("  a\tdog\r\n barks \u2028", "a dog barks"),
        ("a\x00 d\x07og\x1b[31m", "a dog[31m"),
        ("\ufeffa dog\u202e", "a dog"),
        ("cafe\u0301", "café"),
        ("cafe\u200b\u0301", "café"),
        ("un chien aboie 🐕 犬が吠える", "un chien aboie 🐕 犬が吠える"),
        ("👩\u200d🚒 siren", "👩\u200d🚒 siren"),
        ("[MASK] dog [MASK]", "[MASK] dog [MASK]"),
    ],
)
def test_cleaning(text: str, cleaned: str) -> None:
    assert clean_prompt(text) == cleaned


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        (" \n\t ", "empty"),
        ("\x00\x01\u200b", "empty"),
        ("a" * (MAX_PROMPT_CHARS + 1), "has 2001 characters; shorten it to 2000"),
        ("a dog \ud83d barks", "surrogate pair at character 6"),
        (None, "must be text, not NoneType"),
        (b"a dog", "must be text, not bytes"),
    ],
)
def test_refusals(text: object, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        clean_prompt(text)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_length_limit_is_inclusive_and_can_be_set() -> None:
    assert clean_prompt("a" * MAX_PROMPT_CHARS) == "a" * MAX_PROMPT_CHARS
    with pytest.raises(InputError, match="shorten it to 3"):
        clean_prompt("rain", max_chars=3)


def test_the_unconditional_text_passes_clean_text() -> None:
    assert clean_text(" ") == ""


@given(st.text(max_size=60))
def test_cleaning_any_unicode_twice_changes_nothing(text: str) -> None:
    cleaned = clean_text(text)
    assert clean_text(cleaned) == cleaned
    assert unicodedata.is_normalized("NFC", cleaned)
    assert not any(unicodedata.category(char) in {"Cc", "Cs", "Co"} for char in cleaned)
    assert "  " not in cleaned
    assert cleaned == cleaned.strip()
