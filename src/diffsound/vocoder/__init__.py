"""Mel-spectrogram to wave: MelGAN, the iSTFT vocoder, Griffin-Lim."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from diffsound.audio.mel import MelConfig
from diffsound.vocoder.config import GriffinLimConfig, ISTFTConfig, MelGANConfig, VocoderConfig

if TYPE_CHECKING:
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

Vocoder: TypeAlias = "MelGAN | ISTFTVocoder | GriffinLim"


def build_vocoder(config: MelGANConfig | ISTFTConfig | GriffinLimConfig, mel: MelConfig) -> Vocoder:
    """A vocoder for mels of `mel`: mel [B, n_mels, L] to wave [B, L * hop_length].

    Called as `vocoder(mel, generator)`, with a CPU generator for one that draws noise (none of
    these does; such a vocoder has no `reach`, since it must hear a mel in one piece).
    """
    match config:
        case MelGANConfig():
            from diffsound.vocoder.melgan import MelGAN

            return MelGAN(config, mel)
        case ISTFTConfig():
            from diffsound.vocoder.istft import ISTFTVocoder

            return ISTFTVocoder(config, mel)
        case GriffinLimConfig():
            from diffsound.vocoder.griffin_lim import GriffinLim

            return GriffinLim(config, mel)
