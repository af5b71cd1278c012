"""Mel-spectrogram to wave: MelGAN, the iSTFT vocoder, Griffin-Lim."""

from diffsound.vocoder.build import Vocoder, build_vocoder
from diffsound.vocoder.config import GriffinLimConfig, ISTFTConfig, MelGANConfig, VocoderConfig

__all__ = [
    "GriffinLimConfig",
    "ISTFTConfig",
    "MelGANConfig",
    "Vocoder",
    "VocoderConfig",
    "build_vocoder",
]
