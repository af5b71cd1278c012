"""Loss terms against their definitions and hand-computed gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from diffsound.codec import losses


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


def test_perceptual_loss_ignores_the_scale_of_features() -> None:
    network = nn.Conv1d(4, 6, 3, bias=False)
    mel, target = torch.rand(2, 4, 9, requires_grad=True), torch.rand(2, 4, 9)
    loss = losses.perceptual_loss(lambda x: [network(x), 10 * network(x)], mel, target)
    a, b = network(mel).detach(), network(target).detach()
    expected = 0.0
    for item in range(2):
        for place in range(7):
            u, v = a[item, :, place], b[item, :, place]
            expected += float((u / u.norm() - v / v.norm()).square().sum()) / 14
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-4)
    loss.backward()
    assert mel.grad is not None
    assert mel.grad.abs().sum() > 0
    same = losses.perceptual_loss(lambda x: [network(x)], target, target)
    assert float(same.detach()) == pytest.approx(0, abs=1e-10)
