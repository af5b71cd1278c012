"""The classifier behind FID, KL and their relatives (section VI-B).

    classifier = load_classifier("runs/classifier")
    out = classifier(mel)                     # mel [B, n_mels, L]: features and logits

It carries its mel front end's constants and its labels, and refuses mels of another front end.
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
from diffsound.config import Config, Weight
from diffsound.errors import InputError
from diffsound.judges import load_exported
from diffsound.judges.resnet import ResNet, ResNetConfig, Standardised
from diffsound.weights import fingerprint

# The smallest side the unpadded convolutions and the two reductions leave anything of.
SMALLEST_SIDE = 23


class MelceptionConfig(Config):
    """The paper's classifier, 21.8 M parameters before its head.

    auxiliary: weight of the side head's loss in training; 0 builds none.
    """

    kind: Literal["melception"] = "melception"
    dropout: float = Field(default=0.5, ge=0, lt=1)
    auxiliary: Weight = 0.0

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
        """[B, n_mels, L] to [B, 2048, L']."""
        return self.finish(self.middle_of(mel))

    def middle_of(self, mel: Tensor) -> Tensor:
        """[B, n_mels, L] to the 768 channels the side head reads, [B, 768, F'', L'']."""
        short = max(0, SMALLEST_SIDE - mel.shape[2])
        image = F.pad(mel[:, None], (0, short, 0, self.smallest_bands))
        return self.middle(self.fine(self.stem(image)))

    def finish(self, middle: Tensor) -> Tensor:
        """[B, 768, F'', L''] to [B, 2048, L']."""
        return self.coarse(middle).mean(dim=2)


class SideHead(nn.Module):
    """The auxiliary classifier on [B, 768, F'', L'']; any size is first pooled to 5 × 5."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.AdaptiveAvgPool2d(5), _conv(768, 128, 1), _conv(128, 768, 5), nn.Flatten()
        )
        self.head = nn.Linear(768, classes)

    def forward(self, middle: Tensor) -> Tensor:
        """[B, 768, F'', L''] to logits [B, classes]."""
        return self.head(self.body(middle))


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
    frame_window: features pooled around each moment by `maps` (odd).
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
        """A short name of these exact weights; features of two classifiers are never mixed."""
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

        InceptionV3 takes the mean; the small network adds the maximum, which also catches a short
        bark in a long silence.
        """
        if window is None:
            mean, peak = sequence.mean(dim=2, keepdim=True), sequence.amax(dim=2, keepdim=True)
        else:
            half = window // 2
            mean = F.avg_pool1d(sequence, window, 1, half, count_include_pad=False)
            peak = F.max_pool1d(sequence, window, 1, half)
        return mean if isinstance(self.backbone, Melception) else mean + peak


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
