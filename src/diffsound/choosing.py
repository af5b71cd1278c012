"""Keeping the candidates that fit their prompt best (section VIII-D)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from diffsound.errors import InputError
from diffsound.sound import Sound

if TYPE_CHECKING:
    from diffsound.evaluation.ranking import LikelihoodRanker

CAPTIONER_FOLDER = "captioner"


class CaptionerRanker:
    """Scores sounds by how likely a captioner finds their prompt; it is loaded on first use."""

    def __init__(self, captioner: str | Path, device: str = "cpu") -> None:
        """captioner: a run's folder, its export, or a bundle's `captioner` folder."""
        self.captioner = Path(captioner)
        self.device = device

    @cached_property
    def _ranker(self) -> LikelihoodRanker:
        from diffsound.evaluation.captioner import load_captioner
        from diffsound.evaluation.ranking import LikelihoodRanker

        return LikelihoodRanker(load_captioner(self.captioner).to(self.device))

    def score(self, prompt: str, sounds: Sequence[Sound]) -> list[float]:
        """Mean log-likelihood of the prompt's words with each sound."""
        return self._ranker.score(prompt, sounds)


def find_captioner(captioner: str | Path | None, bundle: str | Path | None) -> Path:
    """The captioner to rank with: the run that is named, or the one inside the bundle."""
    from diffsound.bundle import resolve

    if captioner is not None:
        return Path(captioner)
    folder = resolve(bundle) / CAPTIONER_FOLDER
    if not folder.is_dir():
        raise InputError(
            "this bundle has no captioner to choose among candidates with; "
            "keep them all, or take a bundle that has one"
        )
    return folder
