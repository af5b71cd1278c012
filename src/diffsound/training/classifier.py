"""Training the classifier of section VI-B on labelled clips: waves → mels → labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from diffsound.audio.mel import MelConfig, MelFrontEnd
from diffsound.data.augment import AugmentConfig
from diffsound.data.datasets import WaveDataset
from diffsound.data.loaders import EpochLoader
from diffsound.data.samplers import SequentialSampler
from diffsound.data.shards import PreparedData
from diffsound.errors import DataError
from diffsound.judges.classifier import (
    BackboneConfig,
    Classifier,
    ClassifierConfig,
    MelceptionConfig,
    average_precision,
    top_k_accuracy,
)
from diffsound.judges.resnet import MIN_FRAMES, ResNetConfig
from diffsound.training.config import RunConfig
from diffsound.training.stage import Batch, Moment, Player, Stage, Turn
from diffsound.training.waves import (
    MaskConfig,
    MixConfig,
    Process,
    check_rate,
    clips_of,
    mask_mels,
    mix_waves,
    sampler_for,
)

# Enough clips for the bands' means and deviations; a thousand more change nothing.
_STATISTICS_CLIPS = 512


class ClassifierRun(RunConfig):
    """configs/…/classifier.yaml.

    sources: use only clips of these sources (None: all that have a label).
    labels: the classes (None: every label of the training clips).
    frames: length of the random windows to train on.
    valid_clips, valid_frames: number of held-out clips to validate on (0: all), and their length.
    """

    stage: Literal["classifier"]
    mel: MelConfig = MelConfig()
    backbone: BackboneConfig = ResNetConfig()
    multi_label: bool = False
    frame_window: PositiveInt = 3
    sources: tuple[str, ...] | None = None
    labels: tuple[str, ...] | None = None
    frames: int = Field(default=256, ge=MIN_FRAMES)
    augment: AugmentConfig = AugmentConfig()
    mask: MaskConfig = MaskConfig()
    mix: MixConfig = MixConfig()
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    valid_clips: NonNegativeInt = 0
    valid_frames: int = Field(default=431, ge=MIN_FRAMES)


class ClassifierStage(Stage):
    """One player: a softmax over exclusive labels, or one sigmoid per label."""

    kind = "classifier"
    metric = "error"

    def __init__(
        self, config: ClassifierRun, data: PreparedData, process: Process = Process()
    ) -> None:
        super().__init__()
        check_rate(data, config.mel.sample_rate)
        self.config = config
        clips = _of_sources(data, clips_of(data, config.data, config.data.train_split), config)
        self.labels = config.labels or _all_labels(data, clips)
        clips = self._labelled(data, clips, "training")
        held_out = clips_of(data, config.data, config.data.valid_split)
        held_out = self._labelled(data, _of_sources(data, held_out, config), "validation")
        if config.valid_clips:
            step = len(held_out) / config.valid_clips
            held_out = sorted({held_out[int(i * step)] for i in range(config.valid_clips)})
        self.targets = {
            data.records[i].id: self._target(data.records[i].labels) for i in clips + held_out
        }
        self.front_end = MelFrontEnd(config.mel, precise=False)
        self.classifier = Classifier(
            ClassifierConfig(
                mel=config.mel,
                labels=self.labels,
                multi_label=config.multi_label,
                backbone=config.backbone,
                frame_window=config.frame_window,
            )
        )
        self.classifier.standardise_by(*band_statistics(data, clips, self.front_end))
        self.players = {"classifier": Player.of(self.classifier, config.train)}
        hop, batch_size, seed = config.mel.hop_length, config.train.batch_size, config.train.seed
        dataset = WaveDataset(
            data,
            clips,
            (config.frames - 1) * hop,
            config.augment,
            labels=self.labels,
            cache=config.data.cache,
        )
        self.loader = EpochLoader(
            dataset,
            sampler_for([dataset.label(i) for i in range(len(dataset))], config.data.balance, seed),
            batch_size,
            seed=seed,
            rank=process.rank,
            world=process.world,
            workers=config.data.workers,
        )
        fixed = WaveDataset(
            data, held_out, (config.valid_frames - 1) * hop, cache=config.data.cache
        )
        self.held_out = EpochLoader(
            fixed, SequentialSampler(len(fixed)), batch_size, drop_last=False
        )

    def attach(self, prepared: Mapping[str, nn.Module], device: torch.device) -> None:
        super().attach(prepared, device)
        self.front_end.to(device)

    def turns(self, batch: Batch, moment: Moment) -> Iterator[Turn]:
        target = self._targets_of(batch)
        with torch.no_grad():
            wave, target = mix_waves(batch["wave"], target, self.config.mix, moment.generator)
            mel = self.front_end(wave)
            # The bands' means are zero to the network, which standardises its input.
            fill = self.classifier.mean[:, None]
            mel = mask_mels(mel, self.config.mask, moment.generator, fill)
        made = self.prepared["classifier"](mel)
        loss = self._loss(made.logits, target)
        logs: dict[str, Tensor | float] = {
            "loss": loss,
            "top1": (made.logits.argmax(1) == target.argmax(1)).float().mean(),
        }
        backbone = self.config.backbone
        if made.side_logits is not None and isinstance(backbone, MelceptionConfig):
            loss = loss + backbone.auxiliary * self._loss(made.side_logits, target)
        yield Turn("classifier", loss, logs)

    def validate(self, module: nn.Module) -> dict[str, float]:
        """error: 1 - accuracy, or 1 - mean average precision if several labels may hold; loss."""
        logits, targets = [], []
        for batch in self.held_out.batches(0):
            mel = self.front_end(batch["wave"].to(self.device))
            logits.append(module(mel).logits.float().cpu())
            targets.append(self._targets_of(batch).cpu())
        made, target = torch.cat(logits), torch.cat(targets)
        figures = {"loss": float(self._loss(made, target))}
        if self.config.multi_label:
            precision = average_precision(made, target)
            return {"error": 1.0 - precision, "average_precision": precision, **figures}
        top1 = top_k_accuracy(made, target.argmax(1), 1)
        top5 = top_k_accuracy(made, target.argmax(1), 5)
        return {"error": 1.0 - top1, "top1": top1, "top5": top5, **figures}

    def export_config(self) -> dict[str, Any]:
        return self.classifier.config.model_dump(mode="json")

    def _loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy with soft targets [B, classes], or a binary one per label."""
        smoothing = self.config.label_smoothing
        if self.config.multi_label:
            target = target * (1.0 - smoothing) + 0.5 * smoothing
            return F.binary_cross_entropy_with_logits(logits.float(), target)
        return F.cross_entropy(logits.float(), target, label_smoothing=smoothing)

    def _targets_of(self, batch: Batch) -> Tensor:
        return torch.stack([self.targets[name] for name in batch["id"]]).to(self.device)

    def _target(self, names: tuple[str, ...]) -> Tensor:
        """[classes]: 1 for each of the clip's labels (only the first if labels are exclusive)."""
        held = set(names if self.config.multi_label else names[:1])
        return torch.tensor([float(label in held) for label in self.labels])

    def _labelled(self, data: PreparedData, clips: list[int], purpose: str) -> list[int]:
        """The clips that have one of the labels."""
        known = set(self.labels)
        first = slice(None) if self.config.multi_label else slice(1)
        found = [i for i in clips if known.intersection(data.records[i].labels[first])]
        if not found or len(self.labels) < 2:
            raise DataError(
                f"{data.folder} has {len(found)} {purpose} clips with one of {len(self.labels)} "
                "labels, too few to tell apart; change sources, labels or the data group"
            )
        return found


def band_statistics(
    data: PreparedData, clips: list[int], front_end: MelFrontEnd
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each mel band [n_mels] over (some of) the clips' frames."""
    count = min(len(clips), _STATISTICS_CLIPS)
    chosen = [clips[i * len(clips) // count] for i in range(count)]
    bands = front_end.config.n_mels
    frames, total, squares = 0, torch.zeros(bands).double(), torch.zeros(bands).double()
    with torch.inference_mode():
        for clip in chosen:
            mel = front_end(torch.from_numpy(data.wave(clip))[None])[0].double()
            frames += mel.shape[1]
            total += mel.sum(1)
            squares += mel.square().sum(1)
    mean = total / frames
    return mean.float(), (squares / frames - mean.square()).clamp_min(0).sqrt().float()


def _of_sources(data: PreparedData, clips: list[int], config: ClassifierRun) -> list[int]:
    if config.sources is None:
        return clips
    return [i for i in clips if data.records[i].source in config.sources]


def _all_labels(data: PreparedData, clips: list[int]) -> tuple[str, ...]:
    return tuple(sorted({label for i in clips for label in data.records[i].labels}))
