"""The patch discriminator's size, reach and ability."""

from __future__ import annotations

import pytest
import torch

from diffsound.codec.config import DiscriminatorConfig
from diffsound.codec.discriminator import PatchDiscriminator
from diffsound.codec.losses import discriminator_loss
from diffsound.errors import InputError

NORMS = ("batch", "group", "spectral", "none")


def test_published_size_and_patches() -> None:
    with torch.device("meta"):
        discriminator = PatchDiscriminator(DiscriminatorConfig())
        logits = discriminator(torch.empty(1, 80, 848)).logits
    assert sum(parameter.numel() for parameter in discriminator.parameters()) == 2_763_585
    assert logits.shape == (1, 1, 8, 104)


@pytest.mark.parametrize("norm", NORMS)
def test_it_learns_to_tell_noise_from_ridges(norm: str) -> None:
    torch.manual_seed(0)
    config = DiscriminatorConfig.model_validate({"width": 4, "layers": 2, "norm": norm})
    discriminator = PatchDiscriminator(config)
    optimizer = torch.optim.Adam(discriminator.parameters(), lr=5e-3)
    real = (torch.sin(torch.arange(24.0))[:, None] / 2 + 0.5).expand(4, 24, 24)
    for _ in range(60):
        fake = torch.rand(4, 24, 24)
        judged_real, judged_fake = discriminator(real).logits, discriminator(fake).logits
        loss = discriminator_loss(judged_real, judged_fake, "hinge")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert judged_real.mean() > judged_fake.mean() + 0.5


def test_group_norm_judges_a_clip_by_itself() -> None:
    discriminator = PatchDiscriminator(DiscriminatorConfig(width=4, norm="group"))
    mel = torch.rand(3, 32, 40)
    torch.testing.assert_close(discriminator(mel).logits[:1], discriminator(mel[:1]).logits)


def test_features_are_those_of_every_layer() -> None:
    discriminator = PatchDiscriminator(DiscriminatorConfig(width=4, norm="none"))
    judged = discriminator(torch.rand(1, 24, 24))
    assert [tuple(feature.shape[1:]) for feature in judged.features] == [
        (4, 12, 12),
        (8, 6, 6),
        (16, 3, 3),
        (32, 2, 2),
    ]
    assert judged.logits.shape == (1, 1, 1, 1)


def test_a_mel_too_small_for_one_patch_is_refused() -> None:
    discriminator = PatchDiscriminator(DiscriminatorConfig(width=4, norm="none"))
    with pytest.raises(InputError, match="at least 24 bands and frames, not 80 and 23"):
        discriminator(torch.rand(1, 80, 23))
