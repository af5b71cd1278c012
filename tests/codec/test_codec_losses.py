"""Loss terms against their definitions and hand-computed gradients; the measure of edges."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from diffsound.codec import losses
from diffsound.codec.losses import changes, seam_ratio


def test_log_losses_are_equation_4() -> None:
    real, fake = torch.randn(3, 1, 2, 2), torch.randn(3, 1, 2, 2)
    judged_real, judged_fake = real.sigmoid(), fake.sigmoid()
    torch.testing.assert_close(
        losses.discriminator_loss(real, fake, "log"),
        -(judged_real.log().mean() + (1 - judged_fake).log().mean()),
    )
    torch.testing.assert_close(losses.adversarial_loss(fake, "log"), (1 - judged_fake).log().mean())
    torch.testing.assert_close(
        losses.adversarial_loss(fake, "non_saturating"), -judged_fake.log().mean()
    )


def test_log_losses_stay_finite_for_a_sure_discriminator() -> None:
    sure = torch.tensor([1e4], requires_grad=True)
    for loss in (
        losses.discriminator_loss(-sure, sure, "log"),
        losses.adversarial_loss(sure, "log"),
        losses.adversarial_loss(-sure, "non_saturating"),
    ):
        (gradient,) = torch.autograd.grad(loss, sure)
        assert loss.isfinite()
        assert gradient.isfinite().all()


def test_hinge_losses_by_hand() -> None:
    real, fake = torch.tensor([2.0, 0.5]), torch.tensor([-3.0, 1.0])
    # real: max(0, -1), max(0, 0.5) → 0.25; fake: max(0, -2), max(0, 2) → 1
    assert float(losses.discriminator_loss(real, fake, "hinge")) == pytest.approx(0.625)
    assert float(losses.adversarial_loss(fake, "hinge")) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", ["log", "non_saturating", "hinge"])
def test_fooling_the_discriminator_lowers_the_loss(kind: losses.AdversarialKind) -> None:
    logits = torch.linspace(-2, 2, 5)
    values = [float(losses.adversarial_loss(logit, kind)) for logit in logits]
    assert values == sorted(values, reverse=True)


def test_the_adversarial_weight_starts_late() -> None:
    assert [losses.adversarial_weight(step, start=2) for step in range(4)] == [0, 0, 0.8, 0.8]


def test_the_adaptive_weight_is_the_ratio_of_gradient_norms() -> None:
    layer = torch.tensor([1.0, 2.0], requires_grad=True)
    reconstruction = (3 * layer[0] + 4 * layer[1]).sum()  # gradient (3, 4), norm 5
    adversarial = layer.square().sum() / 2  # gradient (1, 2), norm √5
    weight = losses.adaptive_weight(reconstruction, adversarial, layer)
    assert float(weight) == pytest.approx(5 / (5**0.5 + 1e-4))
    assert not weight.requires_grad
    (reconstruction + weight * adversarial).backward()  # both graphs are still there


def test_the_adaptive_weight_is_bounded() -> None:
    layer = torch.ones(1, requires_grad=True)
    weight = losses.adaptive_weight(1e6 * layer.sum(), 0 * layer.sum(), layer)
    assert float(weight) == 1e4


def test_feature_matching_pulls_only_the_fake_side() -> None:
    real = [torch.zeros(1, 2, requires_grad=True), torch.ones(1, 3, requires_grad=True)]
    fake = [torch.full((1, 2), 2.0, requires_grad=True), torch.ones(1, 3, requires_grad=True)]
    loss = losses.feature_matching_loss(real, fake)
    assert float(loss.detach()) == pytest.approx(1.0)
    loss.backward()
    assert real[0].grad is None
    torch.testing.assert_close(fake[0].grad, torch.full((1, 2), 0.25))


STRIDE, BANDS = 16, 5


def noisy() -> Tensor:
    """Steady sounds: every band at a level of its own, with grain."""
    generator = torch.Generator().manual_seed(0)
    level = torch.rand(16, BANDS, 1, generator=generator) * 0.4 + 0.3
    return level + 0.02 * torch.randn(16, BANDS, 6 * STRIDE, generator=generator)


def stepped(mel: Tensor) -> Tensor:
    """The same with every column shifted by a level of its own."""
    generator = torch.Generator().manual_seed(1)
    shifts = 0.1 * torch.randn(*mel.shape[:2], mel.shape[2] // STRIDE, generator=generator)
    return mel + shifts.repeat_interleave(STRIDE, dim=2)


def test_edges_show_where_columns_step() -> None:
    smooth, rough = (seam_ratio(changes(mel, STRIDE)) for mel in (noisy(), stepped(noisy())))
    assert smooth == pytest.approx(1.0, abs=0.1)
    assert rough > 3


def test_changes_against_a_plain_loop() -> None:
    mel = stepped(noisy())
    mel[0, :, 20:30] = 0.0  # not heard
    sums = [[0.0, 0], [0.0, 0]]
    for item in mel:
        for frame in range(1, item.shape[1]):
            pair = item[:, frame - 1 : frame + 1]
            if bool((pair.amax(0) > 0.15).all()):
                kind = sums[0 if frame % STRIDE == 0 else 1]
                kind[0] += float((pair[:, 1] - pair[:, 0]).abs().mean())
                kind[1] += 1
    torch.testing.assert_close(
        changes(mel, STRIDE), torch.tensor(sums, dtype=torch.float64), atol=1e-5, rtol=1e-5
    )
    assert seam_ratio(changes(torch.zeros(1, BANDS, 64), STRIDE)) == 0.0
