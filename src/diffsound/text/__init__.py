"""Frozen text encoders, and mask-based text generation (section IV-C).

Here: prompts as people type them, made safe to encode.
"""

from __future__ import annotations

import unicodedata

from diffsound.errors import InputError

MAX_PROMPT_CHARS = 2000

# Zero-width joiners (emoji sequences, Indic and Arabic scripts) are format characters with meaning.
_KEPT_FORMAT = frozenset("\u200c\u200d")


def clean_prompt(text: str, max_chars: int = MAX_PROMPT_CHARS) -> str:
    """One line of NFC text without control characters; an empty or overlong text is refused.

    >>> clean_prompt("  a dog\\n barks\\x07 ")
    'a dog barks'
    """
    cleaned = clean_text(text, max_chars)
    if not cleaned:
        raise InputError("the prompt is empty; describe a sound, for example: a dog barks")
    return cleaned


def clean_text(text: str, max_chars: int = MAX_PROMPT_CHARS) -> str:
    """As `clean_prompt`, but an empty text (the unconditional one) is allowed."""
    if not isinstance(text, str):
        raise InputError(f"a prompt must be text, not {type(text).__name__}")
    # Checked first: normalising is slow on hostile megabytes, and NFC seldom changes the length.
    if len(text) > max_chars:
        raise InputError(
            f"the prompt has {len(text)} characters; shorten it to {max_chars} or fewer"
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"the prompt holds half of a surrogate pair at character {error.start}; "
            "it is not valid Unicode"
        ) from error
    # Stripped first, since an accent may combine with its letter only without the marks between.
    visible = unicodedata.normalize("NFC", "".join(map(_visible, text)))
    return " ".join(visible.split())


def _visible(char: str) -> str:
    if char.isspace():
        return " "
    if char in _KEPT_FORMAT:
        return char
    # Controls, format marks (byte-order mark, bidi overrides), private use. Unassigned code points
    # stay, because their set depends on Python's version.
    return "" if unicodedata.category(char) in {"Cc", "Cf", "Co"} else char
