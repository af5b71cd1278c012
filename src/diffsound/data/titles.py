"""Titles and file names as plain words: "Dog_bark_04.wav" -> "dog bark"."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4}))")
_EXTENSION = re.compile(r"\.(?:wav|mp3|flac|ogg|aiff?|m4a|opus|wma|mp4)\b", re.IGNORECASE)
_BRACKETS = re.compile(r"\([^)]*\)|\[[^\]]*\]|\{[^}]*\}")
_MONTH = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_DATE = re.compile(rf"\b(?:\d+ ?)?(?:{_MONTH})[a-z]*\.? ?\d+", re.IGNORECASE)
_UNIT = re.compile(
    r"\b\d+(?:[.,]\d+)?\s*(?:k\s*hz|hz|k|bits?|kbps|mins?|minutes?|secs?|seconds?|s|bpm|db|watt|m)\b",
    re.IGNORECASE,
)
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")


@cache
def phrase_table(name: str) -> dict[str, Any]:
    """One of the YAML tables under `phrases/`."""
    text = files("diffsound.data").joinpath("phrases", f"{name}.yaml").read_text(encoding="utf-8")
    table: dict[str, Any] = yaml.safe_load(text)
    return table


def clean_title(title: str) -> str:
    """The words of a title or file name, lower-case, without numbers, dates, units and noise.

    >>> clean_title("Dog_bark_04.wav")
    'dog bark'
    >>> clean_title("20100423.hungry.cats.01")
    'hungry cats'
    >>> clean_title("Pig - Scream 5 - 96k Hz")
    'pig scream'
    >>> clean_title("creature: alien 03")
    'alien'
    >>> clean_title("glassBreak_stereo_44100Hz_v2 (freesound 1234).FLAC")
    'glass break'
    """
    text = _ESCAPE.sub(lambda match: chr(int(match[1] or match[2], 16)), title)
    text = unicodedata.normalize("NFKC", text)
    # Bilingual titles put English last; packs put their name before a colon.
    text = text.split(" / ")[-1].rsplit(": ", 1)[-1]
    text = _EXTENSION.sub(" ", _BRACKETS.sub(" ", text)).replace("_", " ")
    text = _UNIT.sub(" ", _DATE.sub(" ", text))
    text = _CAMEL.sub(" ", text)
    words = re.findall(r"[^\W\d_]+(?:['’][^\W\d_]+)*", text.lower())
    table = phrase_table("generic")
    noise, edges = set(table["noise"]), set(table["edges"])
    words = [word for word in words if word not in noise and (len(word) > 1 or word == "a")]
    while words and words[0] in edges - {"a", "an", "the"}:
        words.pop(0)
    while words and words[-1] in edges:
        words.pop()
    return " ".join(words)
