"""Keeping the candidates that fit their prompt best (section VIII-D)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from diffsound.errors import InputError
from diffsound.sound import Sound

CAPTIONER_FOLDER = "captioner"


def find_captioner(captioner: str | Path | None, bundle: str | Path | None) -> Path:
    """The captioner to rank with: the run that is named, or the one inside the bundle."""
    from diffsound.bundle import resolve

    if captioner is not None:
        return Path(captioner)
    folder = resolve(bundle) / CAPTIONER_FOLDER
    if not folder.is_dir():
        raise InputError(
            "this bundle has no captioner to judge candidates with; "
            "name one with --captioner, or leave --keep out"
        )
    return folder


def keep_best(sounds: Sequence[Sound], keep: int, captioner: str | Path) -> list[Sound]:
    """The `keep` sounds whose prompt the captioner finds likeliest, best first, with their scores.

    All sounds are of one prompt.
    """
    from diffsound.evaluation.captioner import load_captioner
    from diffsound.evaluation.ranking import LikelihoodRanker, best

    scores = LikelihoodRanker(load_captioner(captioner)).score(sounds[0].prompt, sounds)
    return [replace(sounds[place], score=scores[place]) for place in best(scores, keep)]
