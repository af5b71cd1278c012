"""What vocoders are trained on: hinge losses, feature matching, spectral distance."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from diffsound.audio.stft import stft
from diffsound.vocoder.discriminator import Judgement

# The weight of feature matching beside the adversarial loss, as published.
FEATURE_MATCHING_WEIGHT = 10.0


def discriminator_hinge(real: Sequence[Judgement], fake: Sequence[Judgement]) -> Tensor:
    """Summed over scales: mean max(0, 1 - D(real)) + mean max(0, 1 + D(fake))."""
    losses = [
        functional.relu(1 - a.logits).mean() + functional.relu(1 + b.logits).mean()
        for a, b in zip(real, fake, strict=True)
    ]
    return torch.stack(losses).sum()


def generator_hinge(fake: Sequence[Judgement]) -> Tensor:
    """Summed over scales: -mean D(fake)."""
    return torch.stack([-judgement.logits.mean() for judgement in fake]).sum()


def feature_matching(real: Sequence[Judgement], fake: Sequence[Judgement]) -> Tensor:
    """L1 distance of the discriminators' features; the real ones are constants.

    Averaged over scales, and within a scale of n + 2 features summed with MelGAN's 4 / (n + 1).
    """
    losses = []
    for a, b in zip(real, fake, strict=True):
        weight = 4 / (len(a.features) - 1)
        pairs = zip(a.features, b.features, strict=True)
        distances = [functional.l1_loss(y, x.detach()) for x, y in pairs]
        losses.append(weight * torch.stack(distances).sum())
    return torch.stack(losses).mean()


class SpectralLoss(nn.Module):
    """Multi-resolution STFT loss (Yamamoto et al., 2020), averaged over resolutions.

    At each: spectral convergence |S - Ŝ| / |S| (the loud parts) plus the mean absolute difference
    of log magnitudes (the quiet ones).
    """

    def __init__(self, n_ffts: Sequence[int] = (2048, 1024, 512, 256)) -> None:
        super().__init__()
        self.n_ffts = tuple(n_ffts)

    def forward(self, fake: Tensor, real: Tensor) -> Tensor:
        """Waves [B, samples], made and wanted, to a scalar."""
        losses = []
        for n_fft in self.n_ffts:
            window = torch.hann_window(n_fft, device=real.device)
            made = _magnitudes(fake, window)
            wanted = _magnitudes(real, window)
            convergence = (wanted - made).norm() / wanted.norm()
            losses.append(convergence + functional.l1_loss(made.log(), wanted.log()))
        return torch.stack(losses).mean()


def _magnitudes(wave: Tensor, window: Tensor) -> Tensor:
    # The floor bounds the slope of the logarithm; it is -100 dB of a full-scale sine.
    spectrum = stft(wave.float(), window, window.shape[0] // 4)
    return spectrum.abs().clamp_min(window.shape[0] / 4 * 1e-5)
