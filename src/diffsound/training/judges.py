"""Training the judges of section VI-B from waves: the classifier and the captioner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn

from diffsound.audio.mel import MelConfig, MelFrontEnd
from diffsound.data.captions import captions_for
from diffsound.data.datasets import AugmentConfig, ClipData, WaveCache, WaveDataset
from diffsound.data.loaders import EpochLoader, FixedSampler
from diffsound.data.shards import PreparedData
from diffsound.data.soundscape import SceneConfig, SceneMixer
from diffsound.data.soundscape_text import Heard, Outline, caption_of
from diffsound.errors import DataError
from diffsound.files import write_text
from diffsound.judges.captioner import PAD, UNKNOWN, Captioner, CaptionerConfig, CaptionTokenizer
from diffsound.judges.classifier import (
    BackboneConfig,
    Classifier,
    ClassifierConfig,
    average_precision,
    top_k_accuracy,
)
from diffsound.judges.resnet import MIN_FRAMES, ResNetConfig
from diffsound.training.config import RunConfig, Share
from diffsound.training.stage import (
    Batch,
    FixedWaves,
    MaskConfig,
    MixConfig,
    Moment,
    Player,
    Process,
    Stage,
    Turn,
    check_rate,
    clips_of,
    mask_mels,
    mix_waves,
    spread,
    train_loader,
    wave_sampler,
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
        chosen = config.data
        if config.sources is not None:
            chosen = chosen.model_copy(update={"sources": config.sources})
        clips = clips_of(data, chosen, chosen.train_split)
        every = sorted({label for i in clips for label in data.records[i].labels})
        self.labels = config.labels or tuple(every)
        clips = self._labelled(data, clips, "training")
        held_out = self._labelled(data, clips_of(data, chosen, chosen.valid_split), "validation")
        held_out = spread(held_out, config.valid_clips)
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
            )
        )
        self.classifier.standardise_by(*band_statistics(data, clips, self.front_end))
        self.players = {"classifier": Player.of(self.classifier, config.train)}
        hop, cache = config.mel.hop_length, config.data.cache
        samples = (config.frames - 1) * hop
        dataset = WaveDataset(data, clips, samples, config.augment, labels=self.labels, cache=cache)
        self.loader = train_loader(config, dataset, wave_sampler(config, dataset), process)
        fixed = WaveDataset(data, held_out, (config.valid_frames - 1) * hop, cache=cache)
        sampler = FixedSampler(range(len(fixed)))
        self.held_out = EpochLoader(fixed, sampler, config.train.batch_size, drop_last=False)

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
        right = (made.logits.argmax(1) == target.argmax(1)).float().mean()
        yield Turn("classifier", loss, {"loss": loss, "top1": right})

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
    bands = front_end.config.n_mels
    frames, total, squares = 0, torch.zeros(bands).double(), torch.zeros(bands).double()
    with torch.inference_mode():
        for clip in spread(clips, _STATISTICS_CLIPS):
            mel = front_end(torch.from_numpy(data.wave(clip))[None])[0].double()
            frames += mel.shape[1]
            total += mel.sum(1)
            squares += mel.square().sum(1)
    mean = total / frames
    return mean.float(), (squares / frames - mean.square()).clamp_min(0).sqrt().float()


SCENE_SENTENCES = 2000  # enough to contain every word that joins sounds into a scene


class CaptionerRun(RunConfig):
    """configs/…/captioner.yaml.

    frames: length of the windows to train on.
    wordings: largest number of captions per clip, its own first (None: all that can be made from
        its labels and title).
    min_count: words that occur less often are unknown.
    deaf: share of clips whose sound is left out, so that the captioner also learns how likely a
        sentence is without any sound.
    word_dropout: share of the given words that are hidden, so that it has to listen.
    scenes: share of items that are scenes of several clips. mix: how these are mixed.
    """

    stage: Literal["captioner"]
    mel: MelConfig = MelConfig()
    captioner: CaptionerConfig
    frames: PositiveInt = 860
    augment: AugmentConfig = AugmentConfig()
    wordings: PositiveInt | None = None
    min_count: PositiveInt = 1
    label_smoothing: Share = 0.1
    mask: MaskConfig = MaskConfig()
    deaf: Share = 0.0
    word_dropout: Share = 0.0
    scenes: Share = 0.0
    mix: SceneConfig = SceneConfig()
    valid_clips: NonNegativeInt = 256
    valid_frames: PositiveInt = 432
    samples: NonNegativeInt = 16

    @model_validator(mode="after")
    def _same_bands(self) -> CaptionerRun:
        if self.mel.n_mels != self.captioner.n_mels:
            raise ValueError(
                f"mel.n_mels is {self.mel.n_mels} but captioner.n_mels is {self.captioner.n_mels}"
            )
        return self


class CaptionedWaves:
    """Windows of clips, or scenes of several clips, each with one caption:

    {"wave": float32 [samples], "text": str, "id": str}.
    """

    def __init__(
        self,
        waves: WaveDataset,
        captions: Sequence[Sequence[str]],
        mixer: SceneMixer | None,
        scenes: float,
    ) -> None:
        """captions: one or more for each item of `waves`."""
        self.waves, self.captions = waves, captions
        self.mixer, self.scenes = mixer, scenes

    def __len__(self) -> int:
        return len(self.waves)

    def item(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        """The clip at `index`, or a scene in its place."""
        if self.mixer is not None and rng.random() < self.scenes:
            scene = self.mixer.scene(rng)
            text = scene.captions[int(rng.integers(len(scene.captions)))]
            return {"wave": scene.wave, "text": text, "id": scene.events[0].clip}
        item = self.waves.item(index, rng)
        choices = self.captions[index]
        text = choices[int(rng.integers(len(choices)))]
        return {"wave": item["wave"], "text": text, "id": item["id"]}


class CaptionerStage(Stage):
    """Waves → mels → captioner; the vocabulary is that of the training captions."""

    kind = "captioner"
    metric = "nll"

    def __init__(self, config: CaptionerRun, data: PreparedData, process: Process) -> None:
        super().__init__()
        check_rate(data, config.mel.sample_rate)
        self.config = config
        hop, rate = config.mel.hop_length, config.mel.sample_rate
        captions = {
            clip: captions_for(data.records[clip], config.wordings)
            for clip in clips_of(data, config.data, config.data.train_split)
        }
        clips = [clip for clip, said in captions.items() if said]
        if not clips:
            raise DataError(f"{data.folder} has no training clip with a caption, label or title")
        samples = (config.frames - 1) * hop
        cached: ClipData = WaveCache(data, clips) if config.data.cache else data
        waves = WaveDataset(cached, clips, samples, config.augment)
        said = [captions[clip] for clip in clips]
        mixer = None
        if config.scenes:
            mix = config.mix.model_copy(update={"seconds": samples / rate})
            mixer = SceneMixer(cached, clips, mix, sample_rate=rate)
        words = vocabulary(said, config.min_count, scenes=bool(config.scenes))
        self.captioner = Captioner(config.captioner, words, config.mel)
        self.players = {"captioner": Player.of(self.captioner, config.train)}
        # Training does not need the front end's last digits, and they triple its time.
        self.front_end = MelFrontEnd(config.mel, precise=False)
        dataset = CaptionedWaves(waves, said, mixer, config.scenes)
        self.loader = train_loader(config, dataset, wave_sampler(config, waves), process)
        length, size = (config.valid_frames - 1) * hop, config.train.batch_size
        self.held_out = FixedWaves(config, data, length, config.valid_clips, size)
        self.truth = {record.id: next(iter(captions_for(record)), "") for record in data.records}

    def turns(self, batch: Batch, moment: Moment) -> Iterator[Turn]:
        config, generator = self.config, moment.generator
        with torch.no_grad():
            mel = mask_mels(self.front_end(batch["wave"]), config.mask, generator)
        longest = config.captioner.words.longest
        numbers = self.captioner.tokenizer.batch(batch["text"], longest)
        given = numbers[:, :-1].clone()
        lost = torch.rand(given.shape, generator=generator) < config.word_dropout
        given[lost & (given > UNKNOWN)] = UNKNOWN
        deaf = torch.rand(len(mel), generator=generator) < config.deaf
        made = self.prepared["captioner"](mel, given.to(self.device), deaf.to(self.device))
        targets = numbers[:, 1:].to(self.device)
        # Unknown words are not learned: there is nothing to say.
        targets = targets.masked_fill(targets == UNKNOWN, PAD)
        flat, wanted = made.float().flatten(0, 1), targets.flatten()
        loss = F.cross_entropy(
            flat, wanted, ignore_index=PAD, label_smoothing=config.label_smoothing
        )
        with torch.no_grad():
            right = (flat.argmax(-1) == wanted)[wanted != PAD].float().mean()
        yield Turn("captioner", loss, {"loss": loss, "accuracy": right})

    def validate(self, module: nn.Module) -> dict[str, float]:
        """Figures on held-out clips and their own first captions.

        nll: mean negative log-likelihood per word. deaf_nll: the same without the sound.
        pairs: how often a caption is likelier with its own sound than with another clip's
        (chance is one half), which is what ranking depends on.
        """
        assert isinstance(module, Captioner)
        texts: list[str] = []
        heard: list[Tensor] = []
        for batch in self.held_out:
            memory = module.hear(self.front_end(batch["wave"].to(self.device)))
            for clip, vectors in zip(batch["id"], memory, strict=True):
                if self.truth[clip]:
                    texts.append(self.truth[clip])
                    heard.append(vectors)
        if not texts:
            raise DataError("no validation clip has a caption, label or title")
        own = self._likelihood(module, heard, texts)
        pairs = strangers(texts)
        other = self._likelihood(
            module, [heard[other] for _, other in pairs], [texts[mine] for mine, _ in pairs]
        )
        better = own[[mine for mine, _ in pairs]] > other
        deaf = module.log_likelihood(None, texts).cpu()
        return {
            "nll": -float(own.mean()),
            "deaf_nll": -float(deaf.mean()),
            "pairs": float(better.float().mean()) if pairs else 0.5,
        }

    def _likelihood(
        self, module: Captioner, heard: Sequence[Tensor], texts: Sequence[str]
    ) -> Tensor:
        size = self.config.train.batch_size
        found = [torch.zeros(0)]
        for at in range(0, len(texts), size):
            memory = torch.stack(list(heard[at : at + size]))
            found.append(module.likelihood_of(memory, texts[at : at + size]).cpu())
        return torch.cat(found)

    def sample(self, module: nn.Module, folder: Path) -> None:
        """Write what the captioner says about held-out clips next to their own captions."""
        if not self.config.samples:
            return
        assert isinstance(module, Captioner)
        batch = next(iter(self.held_out))
        mel = self.front_end(batch["wave"][: self.config.samples].to(self.device))
        lines = [
            f"{clip}\n  heard: {heard}\n  truth: {self.truth[clip]}\n"
            for clip, heard in zip(batch["id"], module.caption(mel), strict=False)
        ]
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "captions.txt", "".join(lines))

    def export_config(self) -> dict[str, Any]:
        return self.captioner.export_config()


def strangers(texts: Sequence[str]) -> list[tuple[int, int]]:
    """For each clip one with another caption, about half the set away (sets are sorted)."""
    count = len(texts)
    pairs = []
    for mine, text in enumerate(texts):
        others = ((mine + count // 2 + step) % count for step in range(count))
        other = next((other for other in others if texts[other] != text), None)
        if other is not None:
            pairs.append((mine, other))
    return pairs


def vocabulary(
    captions: Sequence[Sequence[str]], min_count: int, *, scenes: bool
) -> tuple[str, ...]:
    """The words of the captions, and those that join captions into captions of scenes."""
    everything = [caption for said in captions for caption in said]
    words = CaptionTokenizer.build(everything, min_count).words
    if not scenes:
        return words
    rng = np.random.default_rng(0)
    sentences = []
    for _ in range(SCENE_SENTENCES):
        drawn = rng.integers(len(captions), size=3)
        chosen = [
            Heard(tuple(captions[place]), *(bool(flag) for flag in rng.random(2) < 0.3))
            for place in drawn
        ]
        together = ((chosen[0], chosen[1]),), ((chosen[0],), (chosen[1],))
        moments = together[int(rng.integers(2))]
        background = chosen[2] if rng.random() < 0.5 else None
        sentences.append(caption_of(Outline(moments, background), rng))
    joining = CaptionTokenizer.build(sentences, max(min_count, 2)).words
    known = set(words)
    return (*words, *(word for word in joining if word not in known))
