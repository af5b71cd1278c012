"""Griffin-Lim: a wave whose STFT magnitudes are those of the mel, with no training at all."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from diffsound.audio.mel import MelConfig, MelFrontEnd, istft, stft, window_envelope
from diffsound.threads import torch_threads
from diffsound.vocoder import GriffinLimConfig

_TINY = 1e-20  # below any magnitude that is not silence; keeps 0 / 0 away


class GriffinLim(nn.Module):
    """Mel [B, n_mels, L] to wave [B, L * hop_length], by the fast variant (Perraudin, 2013).

    The first phases are drawn from the config's seed, the same for every item of a batch, so that
    a mel has one wave: on every device, alone or in company. On a CPU it keeps to one core: on some
    processors Fourier transforms round otherwise on several.
    """

    reach: int | None = None  # see `cut`; with momentum every frame affects every other

    def __init__(self, config: GriffinLimConfig, mel: MelConfig) -> None:
        super().__init__()
        self.config = config
        self.mel_config = mel
        self.front_end = MelFrontEnd(mel)

    @torch.no_grad()
    def forward(self, mel: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Mel [B, n_mels, L] to wave [B, L * hop_length]."""
        # L * hop samples have L + 1 centred frames; the last is a guess.
        with torch_threads(1):
            linear = self.front_end.to_linear(mel)
            return self.from_magnitudes(functional.pad(linear, (0, 1), mode="replicate"))

    @torch.no_grad()
    def from_magnitudes(self, magnitudes: Tensor) -> Tensor:
        """STFT magnitudes [B, bins, L + 1] to wave [B, L * hop_length]."""
        hop = self.mel_config.hop_length
        length = (magnitudes.shape[2] - 1) * hop
        window = torch.hann_window(self.mel_config.n_fft, device=magnitudes.device)
        generator = torch.Generator().manual_seed(self.config.seed)
        angles = 2 * math.pi * torch.rand(magnitudes.shape[1:], generator=generator)
        phases = torch.polar(torch.ones_like(angles), angles).to(magnitudes.device)
        # Inside, a frame's bins lie side by side [B, L + 1, bins], as the Fourier transforms want.
        magnitudes = magnitudes.transpose(1, 2).contiguous()
        spectrum = _scaled(phases.T.repeat(len(magnitudes), 1, 1), magnitudes)
        envelope = window_envelope(window, hop, magnitudes.shape[1])
        # t + m (t - t'), up to the factor 1 + m that the normalisation of phases removes.
        share = self.config.momentum / (1 + self.config.momentum)
        previous = torch.zeros_like(spectrum)
        for _ in range(self.config.iterations):
            wave = istft(spectrum.transpose(1, 2), window, hop, length, envelope)
            estimate = stft(wave, window, hop, self.mel_config.padding).transpose(1, 2)
            spectrum = torch.sub(estimate, previous, alpha=share)
            # Not sgn: its rounding of complex numbers depends on the number of threads.
            spectrum = _scaled(spectrum, magnitudes / spectrum.abs().clamp_min_(_TINY))
            previous = estimate
        return istft(spectrum.transpose(1, 2), window, hop, length, envelope)


def _scaled(spectrum: Tensor, factors: Tensor) -> Tensor:
    """Complex `spectrum` times real `factors`, in place: torch would make both complex first."""
    torch.view_as_real(spectrum).mul_(factors[..., None])
    return spectrum
