"""Training the matcher: a codec's reconstructions and captions, told apart within a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

import torch
from pydantic import NonNegativeFloat, PositiveInt, model_validator
from torch import Tensor, nn

from diffsound.audio.mel import MelFrontEnd
from diffsound.codec.codec import Codec
from diffsound.data.datasets import TokenDataset
from diffsound.data.shards import PreparedData
from diffsound.evaluation.matcher import Matcher, MatcherConfig, matching_loss
from diffsound.evaluation.resnet import ResNetConfig
from diffsound.training.frozen import load_codec
from diffsound.training.grids import GridDataset
from diffsound.training.masking import MaskConfig, mask_mels
from diffsound.training.sets import Process
from diffsound.training.stage import Batch, Moment, Player, Stage, Turn
from diffsound.training.token_run import TokenRun
from diffsound.training.token_sets import (
    class_sampler,
    fixed_grids,
    grid_loader,
    ladder_for,
    token_clips,
)

_STATISTICS_BATCHES = 16  # a few hundred clips tell the bands' means and deviations
_DB_PER_UNIT = 100.0  # a normalised mel's range of 1 is five decades of magnitude: 100 dB


class MatcherRun(TokenRun):
    """configs/…/matcher.yaml.

    codec: needed; sounds are heard as its decoder gives them.
    dim: of the common space. gain_db: clips are louder or softer by up to so much.
    text_dim: the encoder's, filled in when the run starts.
    """

    stage: Literal["matcher"]
    backbone: ResNetConfig = ResNetConfig()
    dim: PositiveInt = 128
    mask: MaskConfig = MaskConfig()
    gain_db: NonNegativeFloat = 6.0
    text_dim: PositiveInt | None = None

    @model_validator(mode="after")
    def _hears(self) -> Self:
        if self.codec is None:
            raise ValueError("a matcher hears a codec's sounds: --set codec=RUN or a bundle")
        return self

    def completed(self, data: PreparedData) -> Self:
        """With the codec's and the encoder's fingerprints; makes what the data lacks."""
        text, tokens = self.find_text(data), self.find_tokens(data)
        return self.model_copy(
            update={
                "tokens": tokens.fingerprint,
                "text": text.fingerprint,
                "text_encoder": text.encoder,
                "text_dim": text.dim,
            }
        )


class MatcherStage(Stage):
    """Tokens → frozen codec → mels; captions → pooled vectors; which belong together?"""

    kind = "matcher"
    metric = "error"

    def __init__(self, config: MatcherRun, data: PreparedData, process: Process) -> None:
        """config: completed, see MatcherRun.completed."""
        super().__init__()
        assert config.codec is not None
        assert config.text is not None
        assert config.text_dim is not None
        self.config = config
        codec, mel, _ = load_codec(config.codec)
        self.codec: Codec = codec
        self.matcher = Matcher(
            MatcherConfig(
                mel=mel,
                backbone=config.backbone,
                dim=config.dim,
                text_dim=config.text_dim,
                text_fingerprint=config.text,
            )
        )
        self.players = {"matcher": Player.of(self.matcher, config.train)}
        ladder = ladder_for(config, codec, MelFrontEnd(mel))
        folders = [data, *(PreparedData.open(path) for path in config.folders())]
        parts = [token_clips(config, part, config.data.train_split, True) for part in folders]
        dataset = GridDataset(parts, ladder)
        self.loader = grid_loader(config, dataset, class_sampler(config, dataset), process)
        held_out = token_clips(config, data, config.data.valid_split, False)
        self.held_out, _ = fixed_grids(config, held_out, ladder)
        self.classes = {key: name for part in (*parts, held_out) for key, name in _classes(part)}
        self.matcher.standardise_by(*self._statistics())

    def attach(self, prepared: Mapping[str, nn.Module], device: torch.device) -> None:
        super().attach(prepared, device)
        self.codec.to(device)

    def turns(self, batch: Batch, moment: Moment) -> Iterator[Turn]:
        mel = self._mels(batch)
        draw = torch.rand(len(mel), 1, 1, generator=moment.generator)
        shift = (2 * draw - 1) * self.config.gain_db / _DB_PER_UNIT
        mel = (mel + shift.to(mel.device)).clamp(0.0, 1.0)
        # The bands' means are what the standardised network sees as nothing.
        mel = mask_mels(mel, self.config.mask, moment.generator, self.matcher.mean[:, None])
        logits = self.prepared["matcher"](mel, batch["pooled"].to(self.device))
        same = self._same(batch).to(self.device)
        loss = matching_loss(logits, same)
        right = same.gather(1, logits.argmax(1, keepdim=True)).float().mean()
        yield Turn("matcher", loss, {"loss": loss, "top1": right})

    def validate(self, module: nn.Module) -> dict[str, float]:
        """error: how often the nearest of all held-out texts is of another class than the sound.

        pairs: how often a sound's own text is nearer to it than one of another class.
        """
        assert isinstance(module, Matcher)
        sounds, texts, names = [], [], []
        for batch in self.held_out.batches(0):
            sounds.append(module.hear(self._mels(batch)))
            texts.append(module.read(batch["pooled"].to(self.device)))
            names += [self.classes[key] for key in batch["id"]]
        cosines = torch.cat(sounds) @ torch.cat(texts).T
        same = _equal(names).to(self.device)
        error = 1.0 - float(same.gather(1, cosines.argmax(1, keepdim=True)).float().mean())
        nearer = (cosines.diagonal()[:, None] > cosines)[~same]
        return {"error": error, "pairs": float(nearer.float().mean()) if len(nearer) else 1.0}

    def export_config(self) -> dict[str, Any]:
        return self.matcher.config.model_dump(mode="json")

    @torch.no_grad()
    def _mels(self, batch: Batch) -> Tensor:
        """What the codec makes of a batch's tokens: [B, n_mels, L] in [0, 1]."""
        mel: Tensor = self.codec.decode(batch["tokens"].to(self.device)).clamp(0.0, 1.0)
        return mel

    def _same(self, batch: Batch) -> Tensor:
        return _equal([self.classes[key] for key in batch["id"]])

    @torch.no_grad()
    def _statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation of each band [n_mels] over the frames of the first batches."""
        batches = self.loader.batches(0)
        chosen = [batch for _, batch in zip(range(_STATISTICS_BATCHES), batches, strict=False)]
        frames = torch.cat([self._mels(batch).transpose(1, 2).flatten(0, 1) for batch in chosen])
        return frames.mean(0), frames.std(0, unbiased=False)


def _classes(part: TokenDataset) -> Iterator[tuple[str, str]]:
    """(id, class) of every clip: its labels together, or the clip itself if it has none."""
    for clip in part.indices:
        record = part.records[clip]
        yield record.id, " + ".join(sorted(record.labels)) or record.id


def _equal(names: list[str]) -> Tensor:
    """bool [N, N], True where two names are the same."""
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    numbers = torch.tensor([places[name] for name in names])
    return numbers[:, None] == numbers[None]
