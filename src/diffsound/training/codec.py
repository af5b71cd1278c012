"""Training the codec (section III-B, eq. 2–4): L1 and codebook terms, then adversarial ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from diffsound.audio.mel import MelConfig, MelFrontEnd
from diffsound.codec.codec import Codec
from diffsound.codec.config import CodecConfig, DiscriminatorConfig
from diffsound.codec.discriminator import PatchDiscriminator
from diffsound.codec.losses import (
    AdversarialKind,
    adaptive_weight,
    adversarial_loss,
    changes,
    discriminator_loss,
    feature_matching_loss,
    reconstruction_loss,
    seam_ratio,
)
from diffsound.codec.principal import principal_start
from diffsound.codec.quantizer import codebook_health
from diffsound.config import Config
from diffsound.data.datasets import AugmentConfig
from diffsound.data.shards import PreparedData
from diffsound.text.features import TextEncoderConfig
from diffsound.training.config import RunConfig, Share
from diffsound.training.run_files import write_mel_pair
from diffsound.training.stage import (
    AdversarialSchedule,
    Batch,
    FixedWaves,
    Moment,
    Player,
    Process,
    Stage,
    Turn,
    check_rate,
    frozen,
    wave_loader,
)
from diffsound.training.tokens import text_of


class CodecAdversarial(AdversarialSchedule):
    """The discriminator's part of the codec's loss.

    weight: λ_d of eq. 4.
    adaptive: multiply λ_d by VQGAN's ratio of gradient norms at the decoder's last layer.
    """

    weight: NonNegativeFloat = 0.8
    kind: AdversarialKind = "hinge"
    adaptive: bool = True
    discriminator: DiscriminatorConfig = DiscriminatorConfig()


class CodecLoss(Config):
    """Weights of the codec's loss; the weights of the codebook terms belong to the quantizer.

    likelihood: of the negative log density of the mel given its tokens, in nats per cell; for a
        codec with `texture` (not in the paper).
    """

    l1: NonNegativeFloat = 1.0
    likelihood: NonNegativeFloat = 0.0
    adversarial: CodecAdversarial | None = None


class CodecRun(RunConfig):
    """configs/…/codec.yaml.

    frames: length of the random crops to train on.
    principal: number of batches whose principal components and k-means give the first weights (a
        codec with a linear backbone; 0: random weights).
    freeze_tokens: train the decoder's half only (with `init`), so that existing tokens, and token
        decoders trained on them, stay valid.
    text_encoder: for a codec whose texture is told what it is to sound like; captions that the data
        has not encoded yet are. text: the encoder's fingerprint, filled in when the run starts.
    text_dropout: share of the windows whose text is withheld.
    valid_clips, valid_frames: number of held-out clips to validate on (0: all), and their length.
    samples: number of spectrogram pictures drawn at a validation.
    """

    stage: Literal["codec"]
    mel: MelConfig = MelConfig()
    codec: CodecConfig
    frames: PositiveInt = 848
    principal: NonNegativeInt = 0
    freeze_tokens: bool = False
    augment: AugmentConfig = AugmentConfig()
    text_encoder: TextEncoderConfig | None = None
    text: str | None = None
    text_dropout: Share = 0.1
    loss: CodecLoss = CodecLoss()
    valid_clips: NonNegativeInt = 128
    valid_frames: PositiveInt = 216
    samples: NonNegativeInt = 4

    @model_validator(mode="after")
    def _same_bands(self) -> CodecRun:
        if self.mel.n_mels != self.codec.n_mels:
            raise ValueError(
                f"mel.n_mels is {self.mel.n_mels} but codec.n_mels is {self.codec.n_mels}"
            )
        if self.loss.likelihood and self.codec.texture is None:
            raise ValueError("loss.likelihood needs codec.texture")
        if self.freeze_tokens and self.init is None and not self.principal:
            raise ValueError("freeze_tokens needs init or principal, which give tokens to keep")
        if self.principal and self.init is not None:
            raise ValueError("a run starts from init or from principal, not from both")
        texture = self.codec.texture
        if self.text_encoder is not None and (texture is None or self.augment.fill == "chain"):
            raise ValueError(
                "text_encoder needs codec.texture, and augment.fill 'silence' or 'loop': "
                "a chain of clips has no single text"
            )
        return self

    def completed(self, data: PreparedData) -> Self:
        """Fill in the encoder's fingerprint and width; encode captions that are not yet."""
        if self.text_encoder is None:
            return self
        index = text_of(data, self.text_encoder, self.text)
        assert self.codec.texture is not None
        texture = self.codec.texture.model_copy(update={"text_dim": index.dim})
        codec = self.codec.model_copy(update={"texture": texture})
        return self.model_copy(update={"text": index.fingerprint, "codec": codec})


class CodecStage(Stage):
    """Waves → mels → codec; the discriminator is the second player, if there is one."""

    kind = "codec"
    metric = "l1"

    def __init__(self, config: CodecRun, data: PreparedData, process: Process) -> None:
        super().__init__()
        check_rate(data, config.mel.sample_rate)
        self.config = config
        self.data = data
        self.codec = Codec(config.codec)
        if config.loss.likelihood:
            self.metric = "nll"
        if config.freeze_tokens:
            self.codec.freeze_tokens()
        self.players = {"codec": Player.of(self.codec, config.train)}
        self.adversarial = config.loss.adversarial
        if self.adversarial is not None:
            rival = self.adversarial
            self.players["discriminator"] = Player(
                PatchDiscriminator(rival.discriminator),
                rival.lr or config.train.lr,
                rival.betas,
                rival.weight_decay,
            )
        # Training does not need the front end's last digits, and they triple its time.
        self.front_end = MelFrontEnd(config.mel, precise=False)
        hop = config.mel.hop_length
        text = None if config.text is None else data.text(config.text)
        samples = (config.frames - 1) * hop
        self.loader = wave_loader(config, data, samples, config.augment, process, text)
        samples = (config.valid_frames - 1) * hop
        self.held_out = FixedWaves(
            config, data, samples, config.valid_clips, config.train.batch_size, text
        )

    def ready(self) -> None:
        """With `principal`: first weights from the first batches, equal in every process."""
        config = self.config
        if not config.principal:
            return
        samples = (config.frames - 1) * config.mel.hop_length
        loader = wave_loader(config, self.data, samples, config.augment, Process())
        # As many epochs as needed: other windows of the same clips give other columns.
        epochs = chain.from_iterable(loader.batches(epoch) for epoch in count())
        batches = islice(epochs, config.principal)
        mels = torch.cat([self.front_end(batch["wave"]) for batch in batches])
        generator = torch.Generator().manual_seed(config.train.seed)
        principal_start(self.codec, mels, generator)

    def attach(self, prepared: Mapping[str, nn.Module], device: torch.device) -> None:
        super().attach(prepared, device)
        self.front_end.to(device)

    def turns(self, batch: Batch, moment: Moment) -> Iterator[Turn]:
        weights = self.config.loss
        with torch.no_grad():
            mel = self.front_end(batch["wave"])  # [B, n_mels, frames]
        text = self._text(batch, moment.generator)
        made = self.prepared["codec"](mel, moment.generator, text)
        rebuilt = made.mel.float()
        l1 = reconstruction_loss(rebuilt, mel)
        loss = weights.l1 * l1
        logs: dict[str, Tensor | float] = {"l1": l1, "commitment": made.commitment_loss}
        if weights.likelihood:
            near = near_sound(mel, self.codec.time_stride)
            nll = -(made.log_prob * near).sum() / near.sum().clamp_min(1)
            loss = loss + weights.likelihood * nll
            logs["nll"] = nll
        strength = self.adversarial.strength(moment) if self.adversarial else 0.0
        if self.adversarial is not None and strength:
            term, more = self._adversarial(self.adversarial, mel, rebuilt, loss)
            loss = loss + strength * term
            logs |= more
        loss = loss + made.quantizer_loss
        health = codebook_health(made.tokens, self.codec.codebook_size)
        logs |= {
            "perplexity": health.perplexity.mean(),
            "used": health.used.mean(),
            "restarts": float(self.codec.quantizer.restarts),
        }
        yield Turn("codec", loss, {"loss": loss, **logs})
        if self.adversarial is not None and strength:
            judge = self.prepared["discriminator"]
            real, fake = judge(mel).logits, judge(rebuilt.detach()).logits
            verdict = discriminator_loss(real, fake, self.adversarial.kind)
            yield Turn(
                "discriminator",
                verdict,
                {"judge_loss": verdict, "judge_real": real.mean(), "judge_fake": fake.mean()},
            )

    def _adversarial(
        self, how: CodecAdversarial, mel: Tensor, rebuilt: Tensor, reconstruction: Tensor
    ) -> tuple[Tensor, dict[str, Tensor | float]]:
        """The weighted adversarial and feature-matching terms, and their logs."""
        with frozen(self.players["discriminator"].module) as judge:
            fake = judge(rebuilt)
            term = adversarial_loss(fake.logits, how.kind)
            logs: dict[str, Tensor | float] = {"adversarial": term}
            weight: Tensor | float = how.weight
            if how.adaptive:
                weight = how.weight * adaptive_weight(reconstruction, term, self.codec.last_layer)
                logs["adversarial_weight"] = weight
            term = weight * term
            if how.feature_matching:
                with torch.no_grad():
                    real = judge(mel)
                matching = feature_matching_loss(real.features, fake.features)
                term = term + how.feature_matching * matching
                logs["feature_matching"] = matching
        return term, logs

    def validate(self, module: nn.Module) -> dict[str, float]:
        """Figures on held-out clips.

        l1: mean distance where there is sound. texture: share of the mels' change from frame to
        frame that is kept (less than 1 is blurred). seam_ratio: change between columns over change
        within columns (1: edges do not show). perplexity, used: of the codes. nll: negative log
        density in nats per cell, of a codec with texture; l1, texture and seam_ratio are then of
        the mel before texture is drawn.
        """
        sums = torch.zeros(3, dtype=torch.float64)
        nll = torch.zeros((), dtype=torch.float64)
        edges = torch.zeros(2, 2, dtype=torch.float64)
        cells, tokens = 0, []
        for mel, text in self._held_out_mels():
            made = module(mel, text=text)
            # The silence that pads short clips is coded perfectly and would hide the errors.
            heard = mel.amax(dim=1, keepdim=True) > 0  # [B, 1, L]
            sums[0] += ((made.mel - mel).abs() * heard).double().sum().cpu()
            sums[1] += (made.mel.diff(dim=-1).abs() * heard[..., 1:]).double().sum().cpu()
            sums[2] += (mel.diff(dim=-1).abs() * heard[..., 1:]).double().sum().cpu()
            edges += changes(made.mel.clamp(0, 1), self.codec.time_stride).cpu()
            if made.log_prob is not None:
                nll -= (made.log_prob * heard[:, 0]).double().sum().cpu() * mel.shape[1]
            cells += int(heard.sum()) * mel.shape[1]
            tokens.append(made.tokens)
        health = codebook_health(torch.cat(tokens), self.codec.codebook_size)
        likelihood = {} if self.codec.texture is None else {"nll": float(nll / max(1, cells))}
        return likelihood | {
            "l1": float(sums[0] / max(1, cells)),
            "texture": float(sums[1] / sums[2].clamp_min(1e-12)),
            "seam_ratio": seam_ratio(edges),
            "perplexity": float(health.perplexity.mean()),
            "used": float(health.used.mean()),
        }

    def sample(self, module: nn.Module, folder: Path) -> None:
        """Draw originals above their reconstructions."""
        if not self.config.samples:
            return
        mel = next(self._held_out_mels())[0][: self.config.samples]
        for index, (original, rebuilt) in enumerate(zip(mel, module(mel).mel, strict=True)):
            write_mel_pair(folder / f"clip-{index}.png", original, rebuilt)

    def export_config(self) -> dict[str, Any]:
        return {
            "codec": self.config.codec.model_dump(mode="json"),
            "mel": self.config.mel.model_dump(mode="json"),
        }

    def _held_out_mels(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Mels of the held-out clips and, for a texture that is told, their texts."""
        for batch in self.held_out:
            yield self.front_end(batch["wave"].to(self.device)), self._text(batch)

    def _text(self, batch: Batch, generator: torch.Generator | None = None) -> Tensor | None:
        """The batch's texts [B, text_dim], or None; with a generator, some withheld: zeros."""
        if "pooled" not in batch:
            return None
        text: Tensor = batch["pooled"].to(self.device)
        if generator is None:
            return text
        told = torch.rand(len(text), 1, generator=generator) >= self.config.text_dropout
        return text * told.to(text)


def near_sound(mel: Tensor, reach: int) -> Tensor:
    """[B, L], 1 for frames of mel [B, n_mels, L] with sound at most `reach` frames away, else 0.

    The silence that fills a window is coded perfectly; only its edges have something to teach.
    """
    heard = (mel.amax(dim=1) > 0).float()
    return F.max_pool1d(heard, 2 * reach + 1, stride=1, padding=reach)
