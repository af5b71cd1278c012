"""Choosing among the sounds of a text (section VIII-D): the matcher, and the rankers.

    ranker = MatcherRanker(load_matcher("runs/matcher"), text_encoder)
    scores = ranker.score("a dog barks", sounds)
    kept = [sounds[i] for i in best(scores, keep=2)]

The captioner of section VI-B gives the likelihood of each word of a text. The matcher puts sounds
and texts into one space, where matching pairs lie close together: it says whether a text is the
right one, in one pass over the sounds. It is trained on a codec's reconstructions
(training/matcher.py), so it can judge what a token decoder makes before the vocoder runs; trained
on sketches too, it can judge takes whose fine rows are not drawn yet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from diffsound.audio.mel import MelConfig, MelFrontEnd
from diffsound.config import Config, Width
from diffsound.errors import InputError
from diffsound.judges import load_exported
from diffsound.judges.resnet import ResNet, ResNetConfig, Standardised
from diffsound.text.features import TextEncoder, TextFeatures
from diffsound.threads import one_core_each, torch_threads

if TYPE_CHECKING:
    from diffsound.judges.captioner import Captioner

_SCALE = 1 / 0.07  # of the cosines, to begin with (Radford et al. 2021, arXiv:2103.00020)
_MAX_SCALE = 100.0
# Of a normalised mel, where 1 is 100 dB: a sound that stays below it is practically silent.
_SILENT = 0.4


class MatcherConfig(Config):
    """Everything needed to build and use a matcher.

    text_dim, text_fingerprint: width and name of the encoder whose pooled vectors it reads.
    dim: of the common space.
    """

    mel: MelConfig = MelConfig()
    backbone: ResNetConfig = ResNetConfig()
    text_dim: Width
    text_fingerprint: str
    dim: Width = 128
    dropout: float = Field(default=0.2, ge=0, lt=1)  # of the text vectors


class Matcher(Standardised):
    """Mels [B, n_mels, L ≥ 16] and pooled texts [N, text_dim] to unit vectors of one space."""

    def __init__(self, config: MatcherConfig) -> None:
        super().__init__(config.mel.n_mels)
        self.config = config
        heard = config.backbone.feature_dim
        self.backbone = ResNet(config.backbone, config.mel.n_mels)
        self.embed = nn.Sequential(
            nn.Linear(config.backbone.widths[-1], heard),
            nn.ReLU(),
            nn.Dropout(config.backbone.dropout),
            nn.Linear(heard, config.dim),
        )
        # One linear map, so that unseen wordings stay as similar as the encoder finds them.
        self.read_text = nn.Sequential(
            nn.Dropout(config.dropout), nn.Linear(config.text_dim, config.dim)
        )
        self.log_scale = nn.Parameter(torch.tensor(math.log(_SCALE)))

    def hear(self, mel: Tensor) -> Tensor:
        """Mel [B, n_mels, L] to unit vectors [B, dim]."""
        sequence = self.backbone(self.standardised(mel))
        # The maximum also catches a short bark in a long silence.
        return F.normalize(self.embed(sequence.mean(dim=2) + sequence.amax(dim=2)), dim=-1)

    def read(self, pooled: Tensor) -> Tensor:
        """Pooled text vectors [N, text_dim] to unit vectors [N, dim]."""
        return F.normalize(self.read_text(F.normalize(pooled, dim=-1)), dim=-1)

    def similarity(self, mel: Tensor, pooled: Tensor) -> Tensor:
        """Cosines [B, N] of every sound with every text."""
        return self.hear(mel) @ self.read(pooled).T

    def forward(self, mel: Tensor, pooled: Tensor) -> Tensor:
        """Logits [B, N] for learning: the cosines, times a learned scale."""
        return self.similarity(mel, pooled) * self.log_scale.exp().clamp_max(_MAX_SCALE)


def matching_loss(logits: Tensor, same: Tensor, unclear: Tensor | None = None) -> Tensor:
    """Cross-entropy of logits [B, N ≥ B] in both directions; the first B texts are the sounds' own.

    same: bool [B, N], True where sound i and text j match; the target is shared among the matches,
    so a second dog in the batch is not a wrong answer to "a dog barks". unclear: bool [B, N], True
    where it is unknown; such texts do not count. Texts beyond the first B are additional negatives
    without a sound of their own.
    """
    batch, truth = len(logits), same.float()
    logits = logits.float()
    if unclear is not None:
        logits = logits.masked_fill(unclear & ~same, torch.finfo(logits.dtype).min)
    by_sound = F.cross_entropy(logits, truth / truth.sum(1, keepdim=True))
    own = truth[:, :batch]
    by_text = F.cross_entropy(logits[:, :batch].T, (own / own.sum(0, keepdim=True)).T)
    return (by_sound + by_text) / 2


def load_matcher(folder: str | Path) -> Matcher:
    """The matcher of a run, of its export, or of a bundle's folder; in eval mode."""
    return load_exported(folder, "matcher", MatcherConfig, Matcher)


class Audible(Protocol):
    """What a ranker hears of a sound; `diffsound.Sound` has it."""

    @property
    def wave(self) -> np.ndarray: ...
    @property
    def sample_rate(self) -> int: ...


class Ranker(Protocol):
    """Scores how well sounds fit a prompt. name: of the score, for tables."""

    @property
    def name(self) -> str: ...

    def score(self, prompt: str, sounds: Sequence[Audible]) -> list[float]:
        """One number per sound, greater is better; comparable among sounds of one prompt."""
        ...


class MatcherRanker:
    """The matcher's cosine of sound and prompt."""

    name = "matcher"

    def __init__(self, matcher: Matcher, encoder: TextEncoder) -> None:
        """encoder: the one whose vectors the matcher reads."""
        if matcher.config.text_fingerprint != encoder.fingerprint:
            raise InputError("the matcher reads the vectors of another text encoder than this one")
        self.matcher, self.encoder = matcher, encoder
        self._ear = Ear(matcher.config.mel, matcher.mean.device, batch_size=1)

    def score(self, prompt: str, sounds: Sequence[Audible]) -> list[float]:
        """Cosine of each sound with the prompt, by its own mel if it has one."""
        device = self.matcher.mean.device
        with torch_threads(1):
            text = self.encoder([prompt]).to(device)
        scores = []
        for sound in sounds:
            drawn = getattr(sound, "mel", None)
            if drawn is None:
                (mel,) = self._ear.batches([sound])
            else:
                mel = torch.from_numpy(drawn)[None].to(device)
            scores += self.fit(text, mel)
        return scores

    @torch.inference_mode()
    def fit(self, text: TextFeatures, mels: Tensor) -> list[float]:
        """Cosine of each mel [B, n_mels, L] with its own text of `text` (B of them).

        Each runs on one core, so the result does not depend on the batch.
        """

        def cosine(pair: tuple[Tensor, Tensor]) -> float:
            mel, pooled = pair
            return float(self.matcher.similarity(mel[None], pooled[None].float()))

        return one_core_each(cosine, list(zip(mels, text.pooled, strict=True)))


class LikelihoodRanker:
    """How likely the captioner finds the prompt's words when it hears the sound, in one pass."""

    name = "caption likelihood"

    def __init__(self, captioner: Captioner, *, batch_size: int = 16) -> None:
        self.captioner = captioner
        self._ear = Ear(captioner.mel, captioner.nothing.device, batch_size)

    def score(self, prompt: str, sounds: Sequence[Audible]) -> list[float]:
        """Mean log-likelihood of the prompt's words with each sound."""
        return [
            value
            for mel in self._ear.batches(sounds)
            for value in self.captioner.log_likelihood(mel, [prompt] * len(mel)).tolist()
        ]


def best(scores: Sequence[float], keep: int) -> list[int]:
    """Positions of the `keep` highest scores, best first; of equal ones the earlier."""
    if not 1 <= keep <= len(scores):
        raise InputError(f"cannot keep {keep} of {len(scores)} candidates")
    order = sorted(range(len(scores)), key=lambda i: (math.isnan(scores[i]), -scores[i], i))
    return order[:keep]


def best_takes(fits: Sequence[float], mels: Tensor, takes: int) -> Tensor:
    """The best of every `takes` consecutive sounds: int64 [B / takes].

    A silent take loses to any other, whatever its score. mels: [B, …].
    """
    silent = mels.flatten(1).amax(dim=1).cpu() < _SILENT
    worth = torch.tensor(fits) - 4.0 * silent  # cosines differ by 2 at most
    places = worth.unflatten(0, (-1, takes)).argmax(dim=1)
    return places + takes * torch.arange(len(places))


class Ear:
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
