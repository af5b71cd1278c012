"""From a config to a vocoder."""

from __future__ import annotations

from diffsound.audio.mel import MelConfig
from diffsound.vocoder.config import GriffinLimConfig, ISTFTConfig, MelGANConfig
from diffsound.vocoder.griffin_lim import GriffinLim
from diffsound.vocoder.istft import ISTFTVocoder
from diffsound.vocoder.melgan import MelGAN

Vocoder = MelGAN | ISTFTVocoder | GriffinLim


def build_vocoder(config: MelGANConfig | ISTFTConfig | GriffinLimConfig, mel: MelConfig) -> Vocoder:
    """A vocoder for mels of `mel`: mel [B, n_mels, L] to wave [B, L * hop_length]."""
    match config:
        case MelGANConfig():
            return MelGAN(config, mel)
        case ISTFTConfig():
            return ISTFTVocoder(config, mel)
        case GriffinLimConfig():
            return GriffinLim(config, mel)
