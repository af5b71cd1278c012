"""MBTG: texts for clips that have only labels (section IV-C).

People describe a sound by naming its events and adding detail. Labels give the events; the detail
is unknown, and `[MASK]` tokens stand where it would be:

    dog bark, man speaking  ->  "[MASK] [MASK] dog bark [MASK] man speaking [MASK]"

"We randomly insert m ∈ {1, 2} mask tokens on either side of the label." In the paper's example two
neighbouring labels have one mask between them. Were each label masked on both of its sides, there
would be two at least; so the run between two labels is read as one, shared by both. Hence: one run
before the first label, one between each two, one after the last, each with its own m.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from diffsound.config import Config
from diffsound.errors import InputError
from diffsound.text.features import MASK

Order = Literal["given", "shuffled", "sorted"]


class MaskedTextConfig(Config):
    """Texts made from labels (MBTG, section IV-C).

    masks: the values m may take. alternatives: keep all wordings that AudioSet lists in a label
        ("Vehicle horn, car horn, honking"), not the usual one alone.
    """

    masks: tuple[int, ...] = (1, 2)
    order: Order = "given"
    alternatives: bool = False


def mask_based_text(
    labels: Sequence[str],
    rng: np.random.Generator,
    *,
    masks: Sequence[int] = (1, 2),
    order: Order = "given",
    synonyms: Mapping[str, Sequence[str]] | None = None,
    alternatives: bool = False,
) -> str:
    """A text for a clip with these labels.

    masks:    the values m may take, all equally likely.
    order:    the labels as given, reshuffled each time, or in alphabetical order.
    synonyms: other wordings of a label; one of them or the label itself is drawn.
    alternatives: keep all the alternatives that such a name lists.

    >>> rng = np.random.default_rng(0)
    >>> mask_based_text(["dog bark", "man speaking"], rng)
    '[MASK] [MASK] dog bark [MASK] [MASK] man speaking [MASK] [MASK]'
    >>> mask_based_text(["Bark", "Male speech, man speaking"], rng)
    '[MASK] bark [MASK] man speaking [MASK]'
    >>> mask_based_text(["rain"], rng, synonyms={"rain": ["rainfall", "raindrops"]})
    '[MASK] rain [MASK]'
    >>> mask_based_text(["rain"], rng, synonyms={"rain": ["rainfall", "raindrops"]})
    '[MASK] [MASK] rainfall [MASK] [MASK]'
    """
    if isinstance(labels, str) or not labels:
        raise InputError("mask-based text needs a list of at least one label")
    if not masks or min(masks) < 0:
        raise InputError(f"the numbers of masks must be 0 or more, not {tuple(masks)}")
    ordered = list(labels)
    if order == "sorted":
        ordered.sort()
    elif order == "shuffled":
        ordered = [ordered[index] for index in rng.permutation(len(ordered))]
    elif order != "given":
        raise InputError(f"the label order is 'given', 'shuffled' or 'sorted', not '{order}'")

    def run() -> list[str]:
        return [MASK] * int(masks[int(rng.integers(len(masks)))])

    words = run()
    for label in ordered:
        wordings = [clean_label(label, alternatives), *(synonyms or {}).get(label, ())]
        words.append(wordings[int(rng.integers(len(wordings)))])
        words += run()
    return " ".join(words)


def clean_label(label: str, alternatives: bool = False) -> str:
    """A display name as words of a sentence.

    AudioSet's names list alternatives, of which the first is the usual one. For speech the one with
    "speaking" is better, and a place needs all its parts. `alternatives` keeps all.

    >>> clean_label("Vehicle horn, car horn, honking")
    'vehicle horn'
    >>> clean_label("Vehicle horn, car horn, honking", alternatives=True)
    'vehicle horn, car horn, honking'
    >>> clean_label("Male speech, man speaking")
    'man speaking'
    >>> clean_label("Inside, small room")
    'inside small room'

    Text in brackets tells labels apart, so it stays:

    >>> clean_label("Police car (siren)")
    'police car siren'
    >>> clean_label("Dog_bark")
    'dog bark'
    """
    words = re.sub(r"[()_\s]+", " ", re.sub(r"\([^)]*\)", _without_commas, label)).lower()
    parts = [part.strip() for part in words.split(",") if part.strip()]
    if not parts:
        raise InputError(f"the label '{label}' has no words")
    if alternatives:
        return ", ".join(parts)
    if parts[0] in {"inside", "outside"}:
        return " ".join(parts)
    return next((part for part in parts if part.endswith(" speaking")), parts[0])


def _without_commas(bracket: re.Match[str]) -> str:
    return bracket[0].replace(",", " ")
