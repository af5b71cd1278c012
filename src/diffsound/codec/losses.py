"""The terms of the codec's training loss (eq. 2–4), and the measure of its columns' edges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

# "log" is eq. 4 as written; its gradient fades where the discriminator is sure, which
# "non_saturating" avoids; "hinge" is what the published code trains with.
AdversarialKind = Literal["log", "non_saturating", "hinge"]

HEARD = 0.15  # of the mel's range; below it nothing is heard


def reconstruction_loss(mel: Tensor, target: Tensor) -> Tensor:
    """The L1 term of eq. 2, averaged over all cells of [B, n_mels, L]."""
    return F.l1_loss(mel, target)


def discriminator_loss(real: Tensor, fake: Tensor, kind: AdversarialKind) -> Tensor:
    """What the discriminator minimises, from its logits of any shape.

    log: −log D(s) − log(1 − D(ŝ)) with D = sigmoid(logit), each by a softplus that cannot overflow.
    hinge: half of max(0, 1 − real) + max(0, 1 + fake), as published.
    """
    if kind == "hinge":
        return (F.relu(1 - real).mean() + F.relu(1 + fake).mean()) / 2
    return F.softplus(-real).mean() + F.softplus(fake).mean()


def adversarial_loss(fake: Tensor, kind: AdversarialKind) -> Tensor:
    """What the codec minimises, from the discriminator's logits of reconstructions.

    log: log(1 − D(ŝ)), eq. 4 (the codec has no part in log D(s)).
    non_saturating: −log D(ŝ). hinge: −logit.
    """
    if kind == "log":
        return -F.softplus(fake).mean()
    if kind == "non_saturating":
        return F.softplus(-fake).mean()
    return -fake.mean()


def adversarial_weight(step: int, start: int, weight: float = 0.8) -> float:
    """λ_d: 0 while the codec learns alone, then the paper's 0.8 from `start` on."""
    return weight if step >= start else 0.0


def adaptive_weight(
    reconstruction: Tensor, adversarial: Tensor, last_layer: Tensor, maximum: float = 1e4
) -> Tensor:
    """VQGAN's balance ‖∇rec‖ / (‖∇adv‖ + 1e-4) at the decoder's last layer, a detached scalar.

    It multiplies λ_d, so that the adversarial gradient is as strong as that of `reconstruction`
    (all terms that compare with the target), however the discriminator's scale drifts.
    """
    (wanted,) = torch.autograd.grad(reconstruction, last_layer, retain_graph=True)
    (given,) = torch.autograd.grad(adversarial, last_layer, retain_graph=True)
    return (wanted.norm() / (given.norm() + 1e-4)).clamp(0.0, maximum).detach()


def feature_matching_loss(real: Sequence[Tensor], fake: Sequence[Tensor]) -> Tensor:
    """Mean L1 between the discriminator's features of originals and of reconstructions."""
    distances = [F.l1_loss(b, a.detach()) for a, b in zip(real, fake, strict=True)]
    return torch.stack(distances).mean()


def changes(mel: Tensor, stride: int) -> Tensor:
    """How much mels [B, n_mels, L] change from frame to frame where they are heard, [2, 2] float64.

    Sum and number of the changes across edges, then of those within columns. `seam_ratio` reads it;
    those of several mels are added.
    """
    change = mel.diff(dim=2).abs().mean(1).double()  # [B, L - 1]
    heard = mel.amax(1) > HEARD
    heard = heard[:, 1:] & heard[:, :-1]
    edge = torch.arange(1, mel.shape[2], device=mel.device) % stride == 0
    found = [(change * chosen, chosen) for chosen in (heard & edge, heard & ~edge)]
    return torch.stack([torch.stack([values.sum(), chosen.sum()]) for values, chosen in found])


def seam_ratio(found: Tensor) -> float:
    """Mean change across edges to that within columns, of `changes`; 1 where edges do not show."""
    edge, inner = found[:, 0] / found[:, 1].clamp_min(1)
    return float(edge / inner.clamp_min(1e-12))
