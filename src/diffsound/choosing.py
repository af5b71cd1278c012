"""Keeping the candidates that fit their prompt best (section VIII-D)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from diffsound.errors import BundleError, InputError
from diffsound.sound import Sound
from diffsound.text.features import TextFeatures
from diffsound.threads import one_core_each, torch_threads

if TYPE_CHECKING:
    from diffsound.bundle import Bundle
    from diffsound.evaluation.matcher import Matcher
    from diffsound.evaluation.ranking import LikelihoodRanker

RANKERS = ("matcher", "captioner")  # the judges that can choose, the better one first


# Of a normalised mel, whose range of 1 is 100 dB: what never gets louder is as good as silent.
_SILENT = 0.4


def best_takes(fits: Sequence[float], mels: Tensor, takes: int) -> Tensor:
    """Of every `takes` sounds in a row the place of the one that fits best: int64 [B / takes].

    A silent take loses to any other, whatever the matcher makes of it. mels: [B, …].
    """
    silent = mels.flatten(1).amax(dim=1).cpu() < _SILENT
    worth = torch.tensor(fits) - 4.0 * silent  # cosines differ by 2 at most
    places = worth.unflatten(0, (-1, takes)).argmax(dim=1)
    return places + takes * torch.arange(len(places))


class MatcherRanker:
    """Scores sounds by how near a matcher finds them to their prompt; it is loaded on first use."""

    def __init__(self, bundle: Bundle, device: torch.device | str = "cpu") -> None:
        """bundle: one with a matcher, whose text encoder that matcher reads."""
        self._bundle = bundle
        self._device = device

    @cached_property
    def _matcher(self) -> Matcher:
        from diffsound.evaluation.matcher import load_matcher

        config = self._bundle.config
        matcher = load_matcher(self._bundle.judges["matcher"])
        if matcher.config.mel != config.codec.mel:
            raise BundleError(f"the matcher of '{config.name}' hears another mel than its codec's")
        if matcher.config.text_fingerprint != self._bundle.text_encoder.fingerprint:
            raise BundleError(f"the matcher of '{config.name}' reads another text encoder")
        return matcher.to(self._device)

    @torch.inference_mode()
    def fit(self, text: TextFeatures, mels: Tensor) -> list[float]:
        """Cosine of each mel [B, n_mels, L] with its own text of `text` (B of them).

        Each on one core: the same numbers alone and in a batch.
        """
        matcher = self._matcher

        def cosine(pair: tuple[Tensor, Tensor]) -> float:
            mel, pooled = pair
            return float(matcher.similarity(mel[None], pooled[None].float()))

        return one_core_each(cosine, list(zip(mels, text.pooled, strict=True)))

    def score(self, prompt: str, sounds: Sequence[Sound]) -> list[float]:
        """Cosine of each sound with the prompt."""
        with torch_threads(1):
            text = self._bundle.text_encoder([prompt]).to(self._device)
        mels = (torch.from_numpy(sound.mel)[None].to(self._device) for sound in sounds)
        return [self.fit(text, mel)[0] for mel in mels]


class CaptionerRanker:
    """Scores sounds by how likely a captioner finds their prompt; it is loaded on first use."""

    def __init__(self, captioner: str | Path, device: torch.device | str = "cpu") -> None:
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


def check_ranks(bundle: str | Path | None) -> None:
    """Refuse a bundle that has nothing to choose among candidates with."""
    from diffsound.bundle import resolve

    folder = resolve(bundle)
    if not any((folder / kind).is_dir() for kind in RANKERS):
        raise InputError(
            "this bundle has no matcher and no captioner to choose among candidates with; "
            "keep them all, or take a bundle that has one"
        )
