"""Training the matcher: which caption of a batch belongs to which of a codec's reconstructions?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Self

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn

from diffsound.audio.mel import MelFrontEnd
from diffsound.codec.codec import Codec
from diffsound.config import Config
from diffsound.data.datasets import TokenDataset
from diffsound.data.shards import PreparedData
from diffsound.errors import ConfigError
from diffsound.judges.ranking import Matcher, MatcherConfig, matching_loss
from diffsound.judges.resnet import ResNetConfig
from diffsound.training.assemble import load_codec
from diffsound.training.config import Share
from diffsound.training.stage import (
    Batch,
    MaskConfig,
    Moment,
    Player,
    Process,
    Stage,
    Turn,
    mask_mels,
)
from diffsound.training.tokens import (
    GridDataset,
    TokenRun,
    fixed_grids,
    grid_loader,
    ladder_for,
    mixed_sampler,
    token_clips,
)

_STATISTICS_BATCHES = 16  # a few hundred clips are enough for the bands' means and deviations
_DB_PER_UNIT = 100.0  # a normalised mel's range of 1 is five decades of magnitude: 100 dB


class SketchConfig(Config):
    """Sounds heard before they are finished: `Codec.sketch` of their first rows.

    share: of the batches. rows: numbers of rows; each such batch uses one of them.
    """

    share: Share = 0.0
    rows: tuple[PositiveInt, ...] = Field(default=(2,), min_length=1)


class MatcherRun(TokenRun):
    """configs/…/matcher.yaml.

    codec: required; sounds are heard as its decoder reconstructs them, some of them as sketches.
    dim: of the common space. gain_db: largest random change of a clip's level.
    further_texts: number of other clips' texts that serve as wrong answers in every step, besides
        those of the batch. unclear: a text of another class whose cosine to a sound's own text is
        above this counts as neither right nor wrong.
    text_dim: the encoder's, filled in when the run starts.
    """

    stage: Literal["matcher"]
    backbone: ResNetConfig = ResNetConfig()
    dim: PositiveInt = 128
    mask: MaskConfig = MaskConfig()
    gain_db: NonNegativeFloat = 6.0
    sketches: SketchConfig = SketchConfig()
    further_texts: NonNegativeInt = 0
    unclear: Share = 0.75
    text_dim: PositiveInt | None = None

    @model_validator(mode="after")
    def _hears(self) -> Self:
        if self.codec is None:
            raise ValueError("a matcher needs a codec: --set codec=RUN or a bundle")
        return self

    def completed(self, data: PreparedData) -> Self:
        """Fill in the fingerprints of codec and encoder; make tokens and text that are missing."""
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
        self.loader = grid_loader(
            config, dataset, mixed_sampler(dataset, config.data, config.train.seed), process
        )
        held_out = token_clips(config, data, config.data.valid_split, False)
        self.held_out, _ = fixed_grids(config, held_out, ladder)
        self.classes = {key: name for part in (*parts, held_out) for key, name in _classes(part)}
        self.texts = TextPool(parts) if config.further_texts else None
        self._check_sketches()
        self.matcher.standardise_by(*self._statistics())

    def turns(self, batch: Batch, moment: Moment) -> Iterator[Turn]:
        mel = self._mels(batch, self._rows(moment.generator))
        draw = torch.rand(len(mel), 1, 1, generator=moment.generator)
        shift = (2 * draw - 1) * self.config.gain_db / _DB_PER_UNIT
        mel = (mel + shift.to(mel.device)).clamp(0.0, 1.0)
        # The bands' means are zero to the network, which standardises its input.
        mel = mask_mels(mel, self.config.mask, moment.generator, self.matcher.mean[:, None])
        pooled, names = batch["pooled"], [self.classes[key] for key in batch["id"]]
        others: list[str] = []
        if self.texts is not None:
            further, others = self.texts.draw(self.config.further_texts, moment.generator)
            pooled = torch.cat([pooled, further])
        same = _equal(names, names + others).to(self.device)
        pooled = pooled.to(self.device)
        logits = self.prepared["matcher"](mel, pooled)
        loss = matching_loss(logits, same, self._unclear(pooled, len(names)))
        right = same.gather(1, logits.argmax(1, keepdim=True)).float().mean()
        yield Turn("matcher", loss, {"loss": loss, "top1": right})

    def _rows(self, generator: torch.Generator | None) -> int | None:
        """The number of rows a batch is heard with; None for finished sounds."""
        rows = self.config.sketches.rows
        draw, which = torch.rand(2, generator=generator).tolist()
        return rows[int(which * len(rows))] if draw < self.config.sketches.share else None

    def _unclear(self, pooled: Tensor, count: int) -> Tensor | None:
        """bool [count, N]: further texts that are too close to a sound's own to count as wrong."""
        if self.texts is None:
            return None
        unit = nn.functional.normalize(pooled, dim=-1)
        near = unit[:count] @ unit.T > self.config.unclear
        near[:, :count] = False
        return near

    def _check_sketches(self) -> None:
        sketches, codec = self.config.sketches, self.codec
        if sketches.share and not codec.sketches:
            raise ConfigError("sketches need a codec with residual tokens")
        if sketches.share and max(sketches.rows) > codec.rows:
            raise ConfigError(f"sketches.rows: this codec has {codec.rows} rows")

    def validate(self, module: nn.Module) -> dict[str, float]:
        """error: how often the nearest of all held-out texts is of another class than the sound.

        pairs: how often a sound's own text is nearer than one of another class. Sketches get
        figures of their own, named by their number of rows.
        """
        assert isinstance(module, Matcher)
        found = self._validate(module, None)
        if self.config.sketches.share:
            for rows in self.config.sketches.rows:
                scores = self._validate(module, rows)
                found |= {f"{name}_{rows}": value for name, value in scores.items()}
        return found

    def _validate(self, module: Matcher, rows: int | None) -> dict[str, float]:
        sounds, texts, names = [], [], []
        for batch in self.held_out.batches(0):
            sounds.append(module.hear(self._mels(batch, rows)))
            texts.append(module.read(batch["pooled"].to(self.device)))
            names += [self.classes[key] for key in batch["id"]]
        cosines = torch.cat(sounds) @ torch.cat(texts).T
        same = _equal(names, names).to(self.device)
        error = 1.0 - float(same.gather(1, cosines.argmax(1, keepdim=True)).float().mean())
        nearer = (cosines.diagonal()[:, None] > cosines)[~same]
        return {"error": error, "pairs": float(nearer.float().mean()) if len(nearer) else 1.0}

    def export_config(self) -> dict[str, Any]:
        return self.matcher.config.model_dump(mode="json")

    @torch.no_grad()
    def _mels(self, batch: Batch, rows: int | None = None) -> Tensor:
        """The codec's mels [B, n_mels, L] of a batch, or sketches of its first `rows`."""
        tokens = batch["tokens"].to(self.device)
        mel: Tensor
        mel = self.codec.decode(tokens) if rows is None else self.codec.sketch(tokens[:, :rows])
        return mel.clamp(0.0, 1.0)

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


class TextPool:
    """The texts of all clips, drawn class by class, so that common classes are no likelier.

    Every distinct text of a class counts once.
    """

    def __init__(self, parts: Sequence[TokenDataset]) -> None:
        found: dict[str, list[Tensor]] = {}
        for part in parts:
            for (_, name), clip in zip(_classes(part), part.indices, strict=True):
                assert part.text is not None
                found.setdefault(name, []).append(part.text.of(clip).pooled)
        self.names = list(found)
        self.texts = [torch.cat(texts).unique(dim=0) for texts in found.values()]

    def draw(self, count: int, generator: torch.Generator | None) -> tuple[Tensor, list[str]]:
        """Texts [count, text_dim] of classes drawn at random, and these classes."""
        places = torch.randint(len(self.names), (count,), generator=generator).tolist()
        share = torch.rand(count, generator=generator).tolist()
        drawn = [
            self.texts[p][int(s * len(self.texts[p]))] for p, s in zip(places, share, strict=True)
        ]
        return torch.stack(drawn).float(), [self.names[place] for place in places]


def _equal(names: list[str], others: list[str]) -> Tensor:
    """bool [len(names), len(others)], True where two names are the same."""
    places = {name: place for place, name in enumerate(dict.fromkeys(names + others))}
    of_names, of_others = (torch.tensor([places[n] for n in each]) for each in (names, others))
    return of_names[:, None] == of_others[None]
