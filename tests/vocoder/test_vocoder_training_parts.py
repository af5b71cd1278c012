"""Discriminators and losses for vocoders."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from diffsound.vocoder.discriminator import (
    Judgement,
    SpectralLoss,
    SpectrogramDiscriminator,
    WaveDiscriminator,
    discriminator_hinge,
    feature_matching,
    generator_hinge,
)


def small(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "wave":
        return WaveDiscriminator(base=4, layers=2, widest=32)
    return SpectrogramDiscriminator((128, 64), base=4)


def test_the_published_wave_discriminator() -> None:
    discriminator = WaveDiscriminator()
    judgements = discriminator(torch.randn(1, 8192))
    assert [judgement.logits.shape for judgement in judgements] == [
        (1, 1, 32),
        (1, 1, 16),
        (1, 1, 8),
    ]
    widths = [feature.shape[1] for feature in judgements[0].features]
    assert widths == [16, 64, 256, 1024, 1024, 1024]


@pytest.mark.parametrize("kind", ["wave", "spectrogram"])
def test_judgements_do_not_depend_on_the_batch(kind: str) -> None:
    discriminator = small(kind)
    waves = torch.randn(2, 600)
    together, alone = discriminator(waves), discriminator(waves[1:])
    for many, one in zip(together, alone, strict=True):
        torch.testing.assert_close(many.logits[1:], one.logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["wave", "spectrogram"])
def test_short_and_silent_waves_are_judged(kind: str) -> None:
    wave = torch.zeros(1, 40, requires_grad=True)
    judgements = small(kind)(wave)
    generator_hinge(judgements).backward()
    assert wave.grad is not None
    assert wave.grad.isfinite().all()


@pytest.mark.parametrize("kind", ["wave", "spectrogram"])
def test_a_discriminator_learns_to_tell_tones_from_noise(kind: str) -> None:
    discriminator = small(kind)
    optimizer = torch.optim.Adam(discriminator.parameters(), lr=3e-3)
    time = torch.arange(256) / 22050

    def real() -> torch.Tensor:
        return 0.5 * torch.sin(2 * torch.pi * (300 + 2000 * torch.rand(8, 1)) * time)

    for _ in range(25):
        judged = discriminator(real()), discriminator(0.3 * torch.randn(8, 256))
        loss = discriminator_hinge(*judged)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scores = [
        torch.stack([judgement.logits.mean() for judgement in discriminator(wave)]).mean()
        for wave in (real(), 0.3 * torch.randn(8, 256))
    ]
    assert scores[0] > scores[1] + 0.5


def test_hinge_losses_by_hand() -> None:
    real = [Judgement(torch.tensor([2.0, 0.0]), []), Judgement(torch.tensor([0.5]), [])]
    fake = [Judgement(torch.tensor([-3.0, 1.0]), []), Judgement(torch.tensor([-1.0]), [])]
    # (0 + 1)/2 + (0 + 2)/2 + 0.5 + 0
    assert discriminator_hinge(real, fake) == 2.0
    # -(-3 + 1)/2 - (-1)
    assert generator_hinge(fake) == 2.0


def test_feature_matching_by_hand() -> None:
    zero, one = torch.zeros(2, 3), torch.ones(2, 3, requires_grad=True)
    real = [Judgement(zero, [zero, zero, zero])] * 2
    fake = [Judgement(zero, [one, 2 * one, zero]), Judgement(zero, [zero, zero, zero])]
    # Scale one: 4/2 * (1 + 2 + 0); scale two: 0; averaged.
    loss = feature_matching(real, fake)
    assert loss == 3.0
    assert not feature_matching(fake, real).requires_grad


def test_spectral_loss_by_hand() -> None:
    wave = torch.randn(2, 2048)
    loss = SpectralLoss((256, 64))
    assert loss(wave, wave) == 0
    # Half the wave: |S - S/2| / |S| = 1/2, and every log magnitude differs by log 2.
    expected = 0.5 + torch.log(torch.tensor(2.0))
    torch.testing.assert_close(loss(0.5 * wave, wave), expected, atol=1e-4, rtol=1e-4)


def test_spectral_loss_is_finite_at_silence() -> None:
    wave = torch.zeros(1, 2048, requires_grad=True)
    loss = SpectralLoss((256, 64))
    value = loss(wave, torch.randn(1, 2048)) + loss(torch.randn(1, 2048), torch.zeros(1, 2048))
    value.backward()
    assert value.isfinite()
    assert wave.grad is not None
    assert wave.grad.isfinite().all()
