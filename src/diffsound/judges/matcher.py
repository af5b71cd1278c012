"""The matcher: sounds and texts in one space, where matching pairs lie close together.

    matcher = load_matcher("runs/matcher")
    matcher.similarity(mel, text.pooled)      # [B sounds, N texts], cosines

The captioner of section VI-B gives the likelihood of each word of a text. The matcher says whether
it is the right text, which is what choosing among candidates (section VIII-D) needs, in one pass
over the sounds. It is trained on a codec's reconstructions (training/matcher.py), so it can judge
what a token decoder makes before the vocoder runs; trained on sketches too, it can judge takes
whose fine rows are not drawn yet.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from diffsound.audio.mel import MelConfig
from diffsound.config import Config, Width
from diffsound.judges import load_exported
from diffsound.judges.resnet import ResNet, ResNetConfig, Standardised

_SCALE = 1 / 0.07  # of the cosines, to begin with (Radford et al. 2021, arXiv:2103.00020)
_MAX_SCALE = 100.0


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
