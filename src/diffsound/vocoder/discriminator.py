"""What vocoders are trained with: discriminators on waves and spectrograms, and the losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from diffsound.audio.mel import stft
from diffsound.vocoder.melgan import ReflectPad, WeightNormConv1d

_SLOPE = 0.2


class Judgement(NamedTuple):
    """One discriminator's opinion: logits (real is positive) and the features on the way there."""

    logits: Tensor
    features: list[Tensor]


class WaveDiscriminator(nn.Module):
    """MelGAN's: the same network on the wave and on the wave at half and quarter rate."""

    def __init__(
        self, scales: int = 3, base: int = 16, layers: int = 4, stride: int = 4, widest: int = 1024
    ) -> None:
        super().__init__()
        self.scales = nn.ModuleList(_WaveScale(base, layers, stride, widest) for _ in range(scales))
        self.halve = nn.AvgPool1d(4, stride=2, padding=1, count_include_pad=False)

    def forward(self, wave: Tensor) -> list[Judgement]:
        """Wave [B, samples] to one judgement per scale."""
        x = wave.unsqueeze(1)
        judgements = []
        for index, scale in enumerate(self.scales):
            if index:
                x = self.halve(x)
            judgements.append(scale(x))
        return judgements


class SpectrogramDiscriminator(nn.Module):
    """Judges complex spectrograms of several resolutions, so that phase counts too.

    Cheap enough for a CPU, since it starts at the frame rate; it is meant for the iSTFT vocoder.
    """

    def __init__(self, n_ffts: Sequence[int] = (2048, 1024, 512), base: int = 16) -> None:
        super().__init__()
        self.resolutions = nn.ModuleList(_SpectrogramScale(n_fft, base) for n_fft in n_ffts)

    def forward(self, wave: Tensor) -> list[Judgement]:
        """Wave [B, samples] to one judgement per resolution."""
        return [resolution(wave) for resolution in self.resolutions]


class _WaveScale(nn.Module):
    def __init__(self, base: int, layers: int, stride: int, widest: int) -> None:
        super().__init__()
        activation = nn.LeakyReLU(_SLOPE)
        stages = [nn.Sequential(ReflectPad(7), WeightNormConv1d(1, base, 15), activation)]
        width = base
        for _ in range(layers):
            narrow, width = width, min(width * stride, widest)
            grouped = WeightNormConv1d(
                narrow,
                width,
                10 * stride + 1,
                stride=stride,
                padding=5 * stride,
                groups=max(1, narrow // 4),
            )
            stages.append(nn.Sequential(grouped, activation))
        narrow, width = width, min(2 * width, widest)
        stages.append(nn.Sequential(WeightNormConv1d(narrow, width, 5, padding=2), activation))
        self.stages = nn.ModuleList(stages)
        self.head = WeightNormConv1d(width, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Judgement:
        return _judge(x, self.stages, self.head)


class _SpectrogramScale(nn.Module):
    def __init__(self, n_fft: int, base: int) -> None:
        super().__init__()
        self.n_fft = n_fft
        activation = nn.LeakyReLU(_SLOPE)
        # Kernels and strides are (frequency, time): the frequency axis is the long one.
        convolutions = [
            nn.Conv2d(2, base, (9, 3), padding=(4, 1)),
            nn.Conv2d(base, base, (9, 3), stride=(2, 1), padding=(4, 1)),
            nn.Conv2d(base, 2 * base, (9, 3), stride=(2, 1), padding=(4, 1)),
            nn.Conv2d(2 * base, 2 * base, (9, 3), stride=(2, 1), padding=(4, 1)),
            nn.Conv2d(2 * base, 2 * base, (3, 3), padding=1),
        ]
        self.stages = nn.ModuleList(
            nn.Sequential(weight_norm(convolution), activation) for convolution in convolutions
        )
        self.head = weight_norm(nn.Conv2d(2 * base, 1, (3, 3), padding=1))

    def forward(self, wave: Tensor) -> Judgement:
        window = torch.hann_window(self.n_fft, device=wave.device)
        spectrum = stft(wave.float(), window, self.n_fft // 4)
        # Magnitudes span many powers of ten; their square root is nearer to what is heard.
        scale = spectrum.abs().clamp_min(1e-5).rsqrt()
        image = torch.stack([spectrum.real * scale, spectrum.imag * scale], dim=1)
        return _judge(image, self.stages, self.head)


def _judge(x: Tensor, stages: nn.ModuleList, head: nn.Module) -> Judgement:
    features = []
    for stage in stages:
        x = stage(x)
        features.append(x)
    return Judgement(head(x), features)


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
