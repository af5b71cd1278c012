"""Mel-spectrogram to wave: MelGAN, the iSTFT vocoder, Griffin-Lim."""

from __future__ import annotations

from diffsound.audio.mel import MelConfig
from diffsound.vocoder.config import GriffinLimConfig, ISTFTConfig, MelGANConfig, VocoderConfig
from diffsound.vocoder.griffin_lim import GriffinLim
from diffsound.vocoder.istft import ISTFTVocoder
from diffsound.vocoder.melgan import MelGAN

__all__ = [
    "GriffinLimConfig",
    "ISTFTConfig",
    "MelGANConfig",
    "Vocoder",
    "VocoderConfig",
    "build_vocoder",
]

Vocoder = MelGAN | ISTFTVocoder | GriffinLim


def build_vocoder(config: MelGANConfig | ISTFTConfig | GriffinLimConfig, mel: MelConfig) -> Vocoder:
    """A vocoder for mels of `mel`: mel [B, n_mels, L] to wave [B, L * hop_length].

    Called as `vocoder(mel, generator)`, with a CPU generator for one that draws noise (none of
    these does; such a vocoder has no `reach`, since it must hear a mel in one piece).
    """
    match config:
        case MelGANConfig():
            return MelGAN(config, mel)
        case ISTFTConfig():
            return ISTFTVocoder(config, mel)
        case GriffinLimConfig():
            return GriffinLim(config, mel)
