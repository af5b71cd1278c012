"""Training a vocoder: on real mels, or on a codec's reconstructions so that it repairs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from diffsound.audio.mel import MelConfig, MelFrontEnd
from diffsound.config import Config
from diffsound.data.datasets import AugmentConfig
from diffsound.data.shards import PreparedData
from diffsound.training.assemble import load_codec_for
from diffsound.training.config import RunConfig
from diffsound.training.run_files import write_mel_pair, write_sound
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
from diffsound.vocoder import ISTFTConfig, MelGANConfig, build_vocoder
from diffsound.vocoder.discriminator import (
    FEATURE_MATCHING_WEIGHT,
    Judgement,
    SpectralLoss,
    SpectrogramDiscriminator,
    WaveDiscriminator,
    discriminator_hinge,
    feature_matching,
    generator_hinge,
)


class VocoderAdversarial(AdversarialSchedule):
    """The discriminators: "wave" is MelGAN's three scales, "spectrogram" is cheaper."""

    weight: NonNegativeFloat = 1.0
    feature_matching: NonNegativeFloat = FEATURE_MATCHING_WEIGHT
    discriminator: Literal["wave", "spectrogram", "both"] = "wave"
    base: PositiveInt = 16


class VocoderLoss(Config):
    """Weights of the loss; the published MelGAN has the adversarial part alone.

    spectral: of the multi-resolution STFT distance. mel: of the L1 distance between mels.
    """

    spectral: NonNegativeFloat = 0.0
    mel: NonNegativeFloat = 0.0
    adversarial: VocoderAdversarial | None = VocoderAdversarial()


class VocoderRun(RunConfig):
    """configs/…/vocoder.yaml.

    frames: length of the segments to train on (the paper's 8192 samples are 32 frames).
    codec: a codec's run or a bundle; its reconstructions replace the real mels.
    codec_margin: frames the codec sees on either side of the segment.
    """

    stage: Literal["vocoder"]
    mel: MelConfig = MelConfig()
    vocoder: Annotated[MelGANConfig | ISTFTConfig, Field(discriminator="kind")]
    frames: PositiveInt = 32
    augment: AugmentConfig = AugmentConfig()
    loss: VocoderLoss = VocoderLoss()
    codec: str | None = None
    codec_margin: NonNegativeInt = 24
    valid_clips: NonNegativeInt = 64
    valid_frames: PositiveInt = 216
    samples: NonNegativeInt = 4


class Discriminators(nn.Module):
    """One or two kinds of discriminators: wave [B, samples] -> all their judgements."""

    def __init__(self, config: VocoderAdversarial) -> None:
        super().__init__()
        kinds: list[nn.Module] = []
        if config.discriminator in ("wave", "both"):
            kinds.append(WaveDiscriminator(base=config.base))
        if config.discriminator in ("spectrogram", "both"):
            kinds.append(SpectrogramDiscriminator(base=config.base))
        self.kinds = nn.ModuleList(kinds)

    def forward(self, wave: Tensor) -> list[Judgement]:
        return [judgement for kind in self.kinds for judgement in kind(wave)]


class VocoderStage(Stage):
    """Waves → mels (→ frozen codec) → vocoder → waves again."""

    kind = "vocoder"
    metric = "mel_l1"

    def __init__(self, config: VocoderRun, data: PreparedData, process: Process) -> None:
        super().__init__()
        check_rate(data, config.mel.sample_rate)
        self.config = config
        self.vocoder = build_vocoder(config.vocoder, config.mel)
        self.players = {"vocoder": Player.of(self.vocoder, config.train)}
        self.adversarial = config.loss.adversarial
        if (rival := self.adversarial) is not None:
            self.players["discriminator"] = Player(
                Discriminators(rival), rival.lr or config.train.lr, rival.betas, rival.weight_decay
            )
        self.codec = load_codec_for(config.codec, config.mel) if config.codec else None
        self.front_end = MelFrontEnd(config.mel, precise=False)
        self.spectral = SpectralLoss()
        hop = config.mel.hop_length
        # A segment's mel must come from the wave around it, not from the segment's mirrored edges.
        self.margin = -(-config.mel.n_fft // (2 * hop)) + (config.codec_margin if self.codec else 0)
        samples = (config.frames + 2 * self.margin) * hop
        self.loader = wave_loader(config, data, samples, config.augment, process)
        self.held_out = FixedWaves(
            config, data, config.valid_frames * hop, config.valid_clips, config.train.batch_size
        )

    def turns(self, batch: Batch, moment: Moment) -> Iterator[Turn]:
        heard, wave, mel = self._segment(batch["wave"])
        made = self.prepared["vocoder"](heard).float()
        weights = self.config.loss
        loss = made.new_zeros(())
        logs: dict[str, Tensor | float] = {}
        if weights.spectral:
            logs["spectral"] = spectral = self.spectral(made, wave)
            loss = loss + weights.spectral * spectral
        if weights.mel:
            logs["mel"] = distance = F.l1_loss(self.front_end(made)[..., : mel.shape[-1]], mel)
            loss = loss + weights.mel * distance
        strength = self.adversarial.strength(moment) if self.adversarial else 0.0
        if self.adversarial is not None and strength:
            with frozen(self.players["discriminator"].module) as judge:
                with torch.no_grad():
                    real = judge(wave)
                fake = judge(made)
                logs["adversarial"] = adversarial = generator_hinge(fake)
                logs["feature_matching"] = matching = feature_matching(real, fake)
            loss = loss + strength * (
                self.adversarial.weight * adversarial + self.adversarial.feature_matching * matching
            )
        yield Turn("vocoder", loss, {"loss": loss, **logs})
        if self.adversarial is not None and strength:
            judges = self.prepared["discriminator"]
            verdict = discriminator_hinge(judges(wave), judges(made.detach()))
            yield Turn("discriminator", verdict, {"judge_loss": verdict})

    @torch.no_grad()
    def _segment(self, wave: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The vocoder's input [B, n_mels, frames], the wave it should give, and its real mel."""
        frames, hop, margin = self.config.frames, self.config.mel.hop_length, self.margin
        mel = self.front_end(wave)
        heard = mel if self.codec is None else self.codec(mel).mel
        middle = slice(margin, margin + frames)
        return heard[..., middle], wave[:, margin * hop : (margin + frames) * hop], mel[..., middle]

    def validate(self, module: nn.Module) -> dict[str, float]:
        """mel_l1, spectral: distances between output and original on held-out clips."""
        sums = torch.zeros(2, dtype=torch.float64)
        clips = 0
        for wave in self._held_out():
            mel, made = self._through(module, wave)
            again = self.front_end(made)[..., : mel.shape[-1]]
            sums[0] += len(wave) * F.l1_loss(again, mel).double().cpu()
            sums[1] += len(wave) * self.spectral(made, wave).double().cpu()
            clips += len(wave)
        mel_l1, spectral = (sums / clips).tolist()
        return {"mel_l1": mel_l1, "spectral": spectral}

    def sample(self, module: nn.Module, folder: Path) -> None:
        """Write pictures and sounds of originals and of the vocoder's output."""
        if not self.config.samples:
            return
        wave = next(self._held_out())[: self.config.samples]
        mel, made = self._through(module, wave)
        rate = self.config.mel.sample_rate
        for index, again in enumerate(self.front_end(made)):
            write_mel_pair(folder / f"clip-{index}.png", mel[index], again)
            write_sound(folder / f"clip-{index}.wav", made[index], rate)
            write_sound(folder / f"clip-{index}-original.wav", wave[index], rate)

    def export_config(self) -> dict[str, Any]:
        return {
            "vocoder": self.config.vocoder.model_dump(mode="json"),
            "mel": self.config.mel.model_dump(mode="json"),
        }

    def _held_out(self) -> Iterator[Tensor]:
        for batch in self.held_out:
            yield batch["wave"].to(self.device)

    def _through(self, module: nn.Module, wave: Tensor) -> tuple[Tensor, Tensor]:
        """The real mel of wave [B, L · hop], and the wave made from it or its reconstruction."""
        mel = self.front_end(wave)[..., : wave.shape[1] // self.config.mel.hop_length]
        heard = self.codec(mel).mel if self.codec is not None else mel
        return mel, module(heard).float()
