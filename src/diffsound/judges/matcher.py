"""The matcher: sounds and texts in one space, where what belongs together lies close.

    matcher = load_matcher("runs/matcher")
    matcher.similarity(mel, text.pooled)      # [B sounds, N texts], cosines

The captioner of section VI-B says how likely each word of a text is; this says whether the text is
the right one, which is what choosing among candidates (section VIII-D) asks, in one pass over the
sounds and none over words. It is trained on a codec's reconstructions (training/matcher.py), so it
judges what a token decoder can make, before any vocoder has run; and, if it was trained on
sketches too, while a decoder that draws coarse rows first is still at work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from diffsound.audio.mel import MelConfig
from diffsound.config import Config, Width, parse_config
from diffsound.judges.resnet import ResNet, ResNetConfig, Standardised
from diffsound.weights import build_with, load_export_of

_SCALE = 1 / 0.07  # of the cosines, to begin with (Radford et al. 2021, arXiv:2103.00020)
_MAX_SCALE = 100.0


class MatcherConfig(Config):
    """Everything needed to build a matcher and to use it rightly.

    text_dim, text_fingerprint: width and name of the encoder whose pooled vectors it reads.
    dim: of the space both sides meet in.
    """

    mel: MelConfig = MelConfig()
    backbone: ResNetConfig = ResNetConfig()
    text_dim: Width
    text_fingerprint: str
    dim: Width = 128
    dropout: float = Field(default=0.2, ge=0, lt=1)  # of what is read


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
        # One linear map: what the encoder finds alike in unheard wordings stays alike.
        self.read_text = nn.Sequential(
            nn.Dropout(config.dropout), nn.Linear(config.text_dim, config.dim)
        )
        self.log_scale = nn.Parameter(torch.tensor(math.log(_SCALE)))

    def hear(self, mel: Tensor) -> Tensor:
        """Mel [B, n_mels, L] to unit vectors [B, dim]."""
        sequence = self.backbone(self.standardised(mel))
        # The maximum hears a short bark in a long silence as well.
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

    same: bool [B, N], True where sound i and text j belong together; a row's truth is shared among
    them, so that a second dog in the batch is no wrong answer to "a dog barks". unclear: bool
    [B, N], True where nobody knows: such a text counts neither way. Texts beyond the first B are
    further wrong answers for the sounds, and have no sound of their own to find.
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
    """The matcher of a run's folder, its export, or a folder shipped like one; in eval mode."""

    config, state = load_export_of(folder, "matcher")
    return build_matcher(config, state, str(folder))


def build_matcher(
    config: Mapping[str, Any], state: Mapping[str, Tensor], source: str = "matcher"
) -> Matcher:
    """A matcher in eval mode from its config as JSON and its weights."""
    parsed = parse_config(MatcherConfig, config, source)
    matcher = build_with(lambda: Matcher(parsed), state, source)
    return matcher.eval().requires_grad_(False)
