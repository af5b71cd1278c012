"""Choosing among candidates (section VIII-D): many sounds for a text, the best few kept.

ranker = LikelihoodRanker(load_captioner("runs/captioner"))
scores = ranker.score("a dog barks", sounds)
kept = [sounds[i] for i in best(scores, keep=2)]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from diffsound.audio.mel import MelConfig, MelFrontEnd
from diffsound.errors import InputError
from diffsound.evaluation import spice
from diffsound.evaluation.caption_metrics import caption_scores
from diffsound.evaluation.captioner import Captioner
from diffsound.evaluation.cider import CiderD
from diffsound.evaluation.matcher import Matcher
from diffsound.evaluation.ptb import ptb_words
from diffsound.evaluation.scene_graph import scene_graph_score
from diffsound.text.features import TextEncoder


class Audible(Protocol):
    """What a ranker hears of a sound; `diffsound.Sound` has it."""

    @property
    def wave(self) -> np.ndarray: ...
    @property
    def sample_rate(self) -> int: ...


AudibleT = TypeVar("AudibleT", bound=Audible)


class Ranker(Protocol):
    """Says how well sounds fit a prompt."""

    def score(self, prompt: str, sounds: Sequence[Audible]) -> list[float]:
        """One number per sound, greater is better; comparable among sounds of one prompt."""
        ...


class LikelihoodRanker:
    """How likely the captioner finds the prompt's words when it hears the sound.

    No search and no metric: one pass, so it is the default. With `prior`, what remains when the
    words' likelihood without any sound is taken off (their pointwise mutual information, in nats
    a word): the order of one prompt's sounds is the same, but prompts become comparable. It needs
    a captioner trained with `deaf` clips.
    """

    def __init__(self, captioner: Captioner, *, prior: bool = False, batch_size: int = 16) -> None:
        self.captioner = captioner
        self.prior = prior
        self._ear = _Ear(captioner.mel, captioner.nothing.device, batch_size)

    def score(self, prompt: str, sounds: Sequence[Audible]) -> list[float]:
        """Mean log-likelihood of the prompt's words with each sound."""
        scores = [
            value
            for mel in self._ear.batches(sounds)
            for value in self.captioner.log_likelihood(mel, [prompt] * len(mel)).tolist()
        ]
        if not self.prior:
            return scores
        expected = float(self.captioner.log_likelihood(None, [prompt]))
        return [value - expected for value in scores]


class CaptionRanker:
    """The paper's way: caption every sound, add the semantic score and CIDEr of the caption
    against the prompt. The semantic score is SPICE where its jars are, else the scene-graph score.

    documents: captions of each clip of a corpus, which say what words are rare (CIDEr).
    """

    def __init__(
        self,
        captioner: Captioner,
        documents: Iterable[Sequence[str]],
        *,
        beams: int = 4,
        batch_size: int = 16,
        corenlp: str | Path | None = None,
    ) -> None:
        self.captioner = captioner
        self.beams = beams
        self._cider = CiderD(_words(captions) for captions in documents)
        self._corenlp = spice.corenlp_folder(corenlp)
        self._ear = _Ear(captioner.mel, captioner.nothing.device, batch_size)

    def score(self, prompt: str, sounds: Sequence[Audible]) -> list[float]:
        """Semantic score + CIDEr of what is said of each sound."""
        said = self.captions(sounds)
        if self._corenlp is not None and spice.missing_reason(self._corenlp) is None:
            meant = spice.spice_scores(said, [[prompt]] * len(said), self._corenlp)
        else:
            meant = [scene_graph_score(caption, [prompt]) for caption in said]
        truth = _words([prompt])
        fluent = [self._cider.score(caption, truth) for caption in _words(said)]
        return [a + b for a, b in zip(meant, fluent, strict=True)]

    def captions(self, sounds: Sequence[Audible]) -> list[str]:
        """What the captioner says of each sound."""
        batches = self._ear.batches(sounds)
        return [said for mel in batches for said in self.captioner.caption(mel, beams=self.beams)]


class MatchRanker:
    """How near a matcher finds the sound to the prompt: a cosine."""

    def __init__(self, matcher: Matcher, encoder: TextEncoder, *, batch_size: int = 16) -> None:
        """encoder: the one whose vectors the matcher reads."""
        if matcher.config.text_fingerprint != encoder.fingerprint:
            raise InputError("the matcher reads the vectors of another text encoder than this one")
        self._matcher, self._encoder = matcher, encoder
        self._ear = _Ear(matcher.config.mel, matcher.mean.device, batch_size)

    @torch.inference_mode()
    def score(self, prompt: str, sounds: Sequence[Audible]) -> list[float]:
        """Cosine of each sound with the prompt."""
        text = self._encoder([prompt]).pooled.to(self._matcher.mean)
        return [
            value
            for mel in self._ear.batches(sounds)
            for value in self._matcher.similarity(mel, text)[:, 0].tolist()
        ]


def best(scores: Sequence[float], keep: int) -> list[int]:
    """Positions of the `keep` highest scores, best first; of equal ones the earlier."""
    if not 1 <= keep <= len(scores):
        raise InputError(f"cannot keep {keep} of {len(scores)} candidates")
    order = sorted(range(len(scores)), key=lambda i: (math.isnan(scores[i]), -scores[i], i))
    return order[:keep]


def rank(
    captioner: Captioner, mels: Sequence[Tensor], prompts: Sequence[str], keep: int
) -> list[list[int]]:
    """For each prompt the positions of the `keep` likeliest of its mels [N, n_mels, L]."""
    if len(mels) != len(prompts):
        raise InputError(f"{len(prompts)} prompts need as many sets of mels, not {len(mels)}")
    return [
        best(captioner.log_likelihood(mel, [prompt] * len(mel)).tolist(), keep)
        for mel, prompt in zip(mels, prompts, strict=True)
    ]


@dataclass(frozen=True)
class RankingRow:
    """A row of table 7: figures when `keep` candidates of each prompt are kept."""

    keep: int
    figures: Mapping[str, float]


Measure = Callable[[Sequence[str], Sequence[AudibleT]], Mapping[str, float]]


def ranking_table(
    ranker: Ranker,
    prompts: Sequence[str],
    candidates: Sequence[Sequence[AudibleT]],
    measures: Sequence[Measure[AudibleT]],
    keeps: Sequence[int] = (10, 5, 2),
) -> list[RankingRow]:
    """Table 7: every measure over the kept sounds, each beside its prompt, for every `keep`.

    candidates: the sounds of each prompt. Scores are computed once for all rows.
    """
    if len(prompts) != len(candidates):
        raise InputError(f"{len(prompts)} prompts need as many sets of candidates")
    scores = [
        ranker.score(prompt, sounds) for prompt, sounds in zip(prompts, candidates, strict=True)
    ]
    rows = []
    for keep in keeps:
        pairs = [
            (prompt, sounds[place])
            for prompt, sounds, found in zip(prompts, candidates, scores, strict=True)
            for place in best(found, keep)
        ]
        texts, kept = [prompt for prompt, _ in pairs], [sound for _, sound in pairs]
        figures = {name: v for measure in measures for name, v in measure(texts, kept).items()}
        rows.append(RankingRow(keep, figures))
    return rows


def caption_measure(
    captioner: Captioner,
    metrics: Sequence[str] = ("cider", "spice", "scene_graph"),
    *,
    beams: int = 4,
    batch_size: int = 16,
    corenlp: str | Path | None = None,
) -> Measure[Audible]:
    """The audio caption loss (section VI-B) as a measure of sounds beside their prompts.

    A metric that is not available here is left out.
    """
    ear = _Ear(captioner.mel, captioner.nothing.device, batch_size)

    def measure(prompts: Sequence[str], sounds: Sequence[Audible]) -> dict[str, float]:
        said = [c for mel in ear.batches(sounds) for c in captioner.caption(mel, beams=beams)]
        references = [[prompt] for prompt in prompts]
        scores = caption_scores(said, references, metrics=metrics, corenlp=corenlp)
        return {name: score.value for name, score in scores.items() if score.value is not None}

    return measure


class _Ear:
    """Sounds to the mels a judge was trained on, in batches of bounded size."""

    def __init__(self, mel: MelConfig, device: torch.device, batch_size: int) -> None:
        self._device, self._batch_size = device, batch_size
        self._front_end = MelFrontEnd(mel).to(device)

    def batches(self, sounds: Sequence[Audible]) -> Iterable[Tensor]:
        """mels [B, n_mels, L] of the sounds in order, those of one batch as long as its longest."""
        for at in range(0, len(sounds), self._batch_size):
            waves = [self._wave(sound) for sound in sounds[at : at + self._batch_size]]
            padded = torch.nn.utils.rnn.pad_sequence(waves, batch_first=True)
            with torch.inference_mode():
                yield self._front_end(padded.to(self._device))

    def _wave(self, sound: Audible) -> Tensor:
        rate = self._front_end.config.sample_rate
        wave = np.asarray(sound.wave, dtype=np.float32)
        if sound.sample_rate != rate:
            import soxr

            wave = soxr.resample(wave, sound.sample_rate, rate)
        return torch.from_numpy(np.ascontiguousarray(wave))


def _words(captions: Iterable[str]) -> list[str]:
    return [" ".join(ptb_words(caption)) for caption in captions]
