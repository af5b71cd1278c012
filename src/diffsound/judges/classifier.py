"""The classifier behind FID, KL and their relatives (section VI-B).

    classifier = load_classifier("runs/classifier")
    out = classifier(mel)                     # mel [B, n_mels, L]: features and logits

It carries its mel front end's constants and its labels.
The backbone is melception or the small ResNet. Melception is InceptionV3 over a mel as a
one-channel image without the two max-pools of its stem, as the paper says, so that higher layers
keep the spectrogram's resolution; those inside the two reduction blocks stay. The rest is Szegedy
et al. 2016 (arXiv:1512.00567), whose figure numbers name the blocks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from diffsound.audio.mel import MelConfig
from diffsound.config import Config
from diffsound.judges import load_exported
from diffsound.judges.resnet import ResNet, ResNetConfig, Standardised
from diffsound.weights import fingerprint

# The smallest side the unpadded convolutions and the two reductions leave anything of.
SMALLEST_SIDE = 23


class MelceptionConfig(Config):
    """The paper's classifier, 21.8 M parameters before its head.

    auxiliary: of a side head's loss; there is none any more, but exports name it.
    """

    kind: Literal["melception"] = "melception"
    dropout: float = Field(default=0.5, ge=0, lt=1)
    auxiliary: float = Field(default=0.0, ge=0, le=0)

    @property
    def feature_dim(self) -> int:
        return 2048


class Melception(nn.Module):
    """Standardised mel [B, n_mels, L] to features over time [B, 2048, L']."""

    def __init__(self, config: MelceptionConfig, n_mels: int) -> None:
        super().__init__()
        self.smallest_bands = max(0, SMALLEST_SIDE - n_mels)
        self.stem = nn.Sequential(
            _conv(1, 32, 3, stride=2),
            _conv(32, 32, 3),
            _conv(32, 64, 3, padding=1),
            _conv(64, 80, 1),
            _conv(80, 192, 3),
        )
        self.fine = nn.Sequential(
            _FigureFive(192, pooled=32), _FigureFive(256, pooled=64), _FigureFive(288, pooled=64)
        )
        self.middle = nn.Sequential(
            _ReduceOnce(288),
            _FigureSix(768, 128),
            _FigureSix(768, 160),
            _FigureSix(768, 160),
            _FigureSix(768, 192),
        )
        self.coarse = nn.Sequential(_ReduceTwice(768), _FigureSeven(1280), _FigureSeven(2048))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, mel: Tensor) -> Tensor:
        short = max(0, SMALLEST_SIDE - mel.shape[2])
        image = F.pad(mel[:, None], (0, short, 0, self.smallest_bands))
        return self.coarse(self.middle(self.fine(self.stem(image)))).mean(dim=2)


def _conv(
    inputs: int,
    outputs: int,
    kernel: int | tuple[int, int],
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False),
        nn.BatchNorm2d(outputs, eps=1e-3),
        nn.ReLU(inplace=True),
    )


def _average() -> nn.AvgPool2d:
    return nn.AvgPool2d(3, stride=1, padding=1)


class _Branches(nn.Module):
    """Branches side by side, their channels concatenated."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class _FigureFive(_Branches):
    """1×1, 5×5, double 3×3 and pooled branches: 224 + pooled channels."""

    def __init__(self, inputs: int, pooled: int) -> None:
        super().__init__(
            _conv(inputs, 64, 1),
            nn.Sequential(_conv(inputs, 48, 1), _conv(48, 64, 5, padding=2)),
            nn.Sequential(
                _conv(inputs, 64, 1), _conv(64, 96, 3, padding=1), _conv(96, 96, 3, padding=1)
            ),
            nn.Sequential(_average(), _conv(inputs, pooled, 1)),
        )


class _ReduceOnce(_Branches):
    """Halves both sides; 480 + inputs channels."""

    def __init__(self, inputs: int) -> None:
        super().__init__(
            _conv(inputs, 384, 3, stride=2),
            nn.Sequential(
                _conv(inputs, 64, 1), _conv(64, 96, 3, padding=1), _conv(96, 96, 3, stride=2)
            ),
            nn.MaxPool2d(3, stride=2),
        )


class _FigureSix(_Branches):
    """7×7 factored into 1×7 and 7×1, once and twice; 768 channels, `inner` inside."""

    def __init__(self, inputs: int, inner: int) -> None:
        row, column = (1, 7), (7, 1)
        along, across = (0, 3), (3, 0)
        super().__init__(
            _conv(inputs, 192, 1),
            nn.Sequential(
                _conv(inputs, inner, 1),
                _conv(inner, inner, row, padding=along),
                _conv(inner, 192, column, padding=across),
            ),
            nn.Sequential(
                _conv(inputs, inner, 1),
                _conv(inner, inner, column, padding=across),
                _conv(inner, inner, row, padding=along),
                _conv(inner, inner, column, padding=across),
                _conv(inner, 192, row, padding=along),
            ),
            nn.Sequential(_average(), _conv(inputs, 192, 1)),
        )


class _ReduceTwice(_Branches):
    """Halves both sides again; 512 + inputs channels."""

    def __init__(self, inputs: int) -> None:
        super().__init__(
            nn.Sequential(_conv(inputs, 192, 1), _conv(192, 320, 3, stride=2)),
            nn.Sequential(
                _conv(inputs, 192, 1),
                _conv(192, 192, (1, 7), padding=(0, 3)),
                _conv(192, 192, (7, 1), padding=(3, 0)),
                _conv(192, 192, 3, stride=2),
            ),
            nn.MaxPool2d(3, stride=2),
        )


class _FigureSeven(_Branches):
    """Branches that end in 1×3 beside 3×1: 2048 channels."""

    def __init__(self, inputs: int) -> None:
        super().__init__(
            _conv(inputs, 320, 1),
            nn.Sequential(_conv(inputs, 384, 1), _split(384)),
            nn.Sequential(_conv(inputs, 448, 1), _conv(448, 384, 3, padding=1), _split(384)),
            nn.Sequential(_average(), _conv(inputs, 192, 1)),
        )


def _split(width: int) -> _Branches:
    return _Branches(
        _conv(width, width, (1, 3), padding=(0, 1)), _conv(width, width, (3, 1), padding=(1, 0))
    )


BackboneConfig = Annotated[MelceptionConfig | ResNetConfig, Field(discriminator="kind")]


class ClassifierConfig(Config):
    """Everything needed to build and use a classifier.

    multi_label: several labels may hold at once (AudioSet): sigmoids instead of a softmax.
    """

    mel: MelConfig = MelConfig()
    labels: tuple[str, ...] = Field(min_length=2, max_length=100_000)
    multi_label: bool = False
    backbone: BackboneConfig = ResNetConfig()
    # Nothing reads it any more; exported classifiers name it, and it is part of their fingerprint.
    frame_window: int = Field(default=3, ge=1, le=1023)

    @model_validator(mode="after")
    def _check(self) -> ClassifierConfig:
        if len(set(self.labels)) != len(self.labels):
            raise ValueError("a label is named twice in labels")
        return self


class ClassifierOutput(NamedTuple):
    """features [B, D] before the last layer; logits [B, classes]."""

    features: Tensor
    logits: Tensor


class Classifier(Standardised):
    """Mel [B, n_mels, L ≥ 16] in [0, 1] to features and logits; L may be any length."""

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__(config.mel.n_mels)
        self.config = config
        backbone, classes, n_mels = config.backbone, len(config.labels), config.mel.n_mels
        self.backbone: Melception | ResNet
        self.embed: nn.Module
        if isinstance(backbone, MelceptionConfig):
            self.backbone = Melception(backbone, n_mels)
            self.embed = nn.Identity()
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
        """A short name of these exact weights; features of two classifiers are never mixed."""
        return fingerprint(self.config.model_dump(mode="json"), self.state_dict())

    def forward(self, mel: Tensor) -> ClassifierOutput:
        """Mel [B, n_mels, L] to features [B, D] and logits [B, classes]."""
        sequence = self.backbone(self.standardised(mel))
        summary = sequence.mean(dim=2)
        if isinstance(self.backbone, ResNet):  # the maximum also catches a bark in a long silence
            summary = summary + sequence.amax(dim=2)
        features = self.embed(summary)
        return ClassifierOutput(features, self.head(self.dropout(features)))


def load_classifier(folder: str | Path) -> Classifier:
    """The classifier of a run, of its export, or of a bundle's folder; in eval mode."""
    return load_exported(folder, "classifier", ClassifierConfig, Classifier)


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
