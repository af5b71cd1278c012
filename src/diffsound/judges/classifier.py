"""The classifier behind FID, KL and their relatives (section VI-B).

    classifier = load_classifier("runs/classifier")
    out = classifier(mel)                     # mel [B, n_mels, L]: features and logits
    classifier.framewise(mel)                 # what sounds when

It carries its mel front end's constants and its labels; whoever has mels of another front end is
refused instead of being given numbers that mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from diffsound.audio.mel import MelConfig
from diffsound.config import Config, parse_config
from diffsound.errors import InputError
from diffsound.judges.melception import Melception, MelceptionConfig, SideHead
from diffsound.judges.resnet import ResNet, ResNetConfig, Standardised
from diffsound.weights import build_with, fingerprint, load_export_of

BackboneConfig = Annotated[MelceptionConfig | ResNetConfig, Field(discriminator="kind")]


class ClassifierConfig(Config):
    """Everything needed to build a classifier and to use it rightly.

    multi_label: several labels may hold at once (AudioSet): sigmoids instead of a softmax.
    frame_window: features joined around each moment by `framewise` (odd).
    """

    mel: MelConfig = MelConfig()
    labels: tuple[str, ...] = Field(min_length=2, max_length=100_000)
    multi_label: bool = False
    backbone: BackboneConfig = ResNetConfig()
    frame_window: int = Field(default=3, ge=1, le=1023)

    @model_validator(mode="after")
    def _check(self) -> ClassifierConfig:
        if len(set(self.labels)) != len(self.labels):
            raise ValueError("a label is named twice in labels")
        if self.frame_window % 2 == 0:
            raise ValueError(f"frame_window must be odd, not {self.frame_window}")
        return self


class ClassifierOutput(NamedTuple):
    """features [B, D] before the last layer; logits [B, classes]; the side head's, if any."""

    features: Tensor
    logits: Tensor
    side_logits: Tensor | None = None


class Classifier(Standardised):
    """Mel [B, n_mels, L ≥ 16] in [0, 1] to features and logits; L may be any length."""

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__(config.mel.n_mels)
        self.config = config
        backbone, classes, n_mels = config.backbone, len(config.labels), config.mel.n_mels
        self.backbone: Melception | ResNet
        self.embed: nn.Module
        self.side: SideHead | None = None
        if isinstance(backbone, MelceptionConfig):
            self.backbone = Melception(backbone, n_mels)
            self.embed = nn.Identity()
            self.side = SideHead(classes) if backbone.auxiliary else None
        else:
            self.backbone = ResNet(backbone, n_mels)
            self.embed = nn.Sequential(
                nn.Linear(backbone.widths[-1], backbone.feature_dim), nn.ReLU()
            )
        self.dropout = nn.Dropout(backbone.dropout)
        self.head = nn.Linear(backbone.feature_dim, classes)

    @property
    def feature_dim(self) -> int:
        return self.config.backbone.feature_dim

    @property
    def fingerprint(self) -> str:
        """A short name for this very classifier; features of two that differ are not mixed."""
        return fingerprint(self.config.model_dump(mode="json"), self.state_dict())

    def forward(self, mel: Tensor) -> ClassifierOutput:
        """Mel [B, n_mels, L] to features [B, D] and logits [B, classes]."""
        image = self.standardised(mel)
        side = None
        if self.side is not None and self.training and isinstance(self.backbone, Melception):
            middle = self.backbone.middle_of(image)
            side, sequence = self.side(middle), self.backbone.finish(middle)
        else:
            sequence = self.backbone(image)
        features = self.embed(self._summary(sequence, None)[..., 0])
        return ClassifierOutput(features, self.head(self.dropout(features)), side)

    def maps(self, mel: Tensor) -> list[Tensor]:
        """What a codec's perceptual loss compares: inner maps [B, C, …] of a mel, level by level.

        The small network's last are the features [B, D, L'] behind its verdict on each moment.
        """
        image = self.standardised(mel)
        if isinstance(self.backbone, Melception):
            return [self.backbone.middle_of(image)]
        maps = self.backbone.maps(image)
        return [*maps, self._local_features(maps[-1])]

    def framewise(self, mel: Tensor) -> Tensor:
        """Mel [B, n_mels, L] to logits over time [B, classes, L'], L' about L / 32 (melception 8).

        The classifier's own verdict on a window of `frame_window` features around each moment.
        """
        features = self._local_features(self.backbone(self.standardised(mel)))
        return self.head(features.transpose(1, 2)).transpose(1, 2)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Logits [B, classes, …] to probabilities: softmax over axis 1, sigmoids if multi-label."""
        return logits.sigmoid() if self.config.multi_label else logits.softmax(dim=1)

    def check_mel(self, mel: MelConfig) -> None:
        """Refuse mels of another front end, naming what differs."""
        own, other = self.config.mel.model_dump(), mel.model_dump()
        differing = [f"{key} {own[key]} ≠ {other[key]}" for key in own if own[key] != other[key]]
        if differing:
            raise InputError(
                f"this classifier was trained on another mel front end ({', '.join(differing)}); "
                "score waves instead of mels, or train a classifier for these mels"
            )

    def _local_features(self, sequence: Tensor) -> Tensor:
        """[B, C, L'] to features [B, D, L'], each of the window around a moment."""
        local = self._summary(sequence, self.config.frame_window)
        return self.embed(local.transpose(1, 2)).transpose(1, 2)

    def _summary(self, sequence: Tensor, window: int | None) -> Tensor:
        """[B, C, L'] to [B, C, 1] over all time, or [B, C, L'] over a window around each moment.

        InceptionV3 takes the mean; the small network adds the maximum, which hears a short bark
        in a long silence as well.
        """
        if window is None:
            mean, peak = sequence.mean(dim=2, keepdim=True), sequence.amax(dim=2, keepdim=True)
        else:
            half = window // 2
            mean = F.avg_pool1d(sequence, window, 1, half, count_include_pad=False)
            peak = F.max_pool1d(sequence, window, 1, half)
        return mean if isinstance(self.backbone, Melception) else mean + peak


def load_classifier(folder: str | Path) -> Classifier:
    """The classifier of a run's folder, its export, or a folder shipped like one; in eval mode."""

    config, state = load_export_of(folder, "classifier")
    return build_classifier(config, state, str(folder))


def build_classifier(
    config: Mapping[str, Any], state: Mapping[str, Tensor], source: str = "classifier"
) -> Classifier:
    """A classifier in eval mode from its config as JSON and its weights."""
    parsed = parse_config(ClassifierConfig, config, source)
    classifier = build_with(lambda: Classifier(parsed), state, source)
    return classifier.eval().requires_grad_(False)


def top_k_accuracy(logits: Tensor, labels: Tensor, k: int = 1) -> float:
    """Share of clips whose label is among the k likeliest; logits [N, classes], labels [N]."""
    best = logits.topk(min(k, logits.shape[1]), dim=1).indices
    return float((best == labels[:, None]).any(dim=1).double().mean())


def average_precision(scores: Tensor, targets: Tensor) -> float:
    """Mean over the classes that occur of the precision at each of their clips (AudioSet's mAP).

    scores, targets: [N, classes], targets 0 or 1.
    """
    present = targets.sum(dim=0) > 0
    if not bool(present.any()):
        return 0.0
    order = scores[:, present].argsort(dim=0, descending=True, stable=True)
    hits = targets[:, present].double().gather(0, order)
    ranks = torch.arange(1, len(scores) + 1, dtype=torch.float64, device=scores.device)[:, None]
    precision = hits.cumsum(dim=0) / ranks
    return float(((precision * hits).sum(dim=0) / hits.sum(dim=0)).mean())
