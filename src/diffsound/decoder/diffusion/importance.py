"""Drawing training times where the loss is large (the published code's importance sampling)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ImportanceSampler(nn.Module):
    """Draws t in 1..T in proportion to the root of a running mean of the squared loss at t.

    Uniform until every t was drawn more than 10 times. Its state is in two buffers, so it is
    saved and resumed with the model that owns it. In multi-process training each process keeps
    its own history; the estimate stays unbiased, as each t's own probability divides its loss.
    """

    history: Tensor
    count: Tensor

    def __init__(self, steps: int) -> None:
        """steps: T, at least 1."""
        super().__init__()
        if steps < 1:
            raise ValueError(f"there must be at least 1 step, got {steps}")
        self.register_buffer("history", torch.zeros(steps))
        self.register_buffer("count", torch.zeros(steps, dtype=torch.int64))

    def probabilities(self) -> Tensor:
        """The probability of each t = 1..T, [T] float32 on the CPU."""
        history = self.history.detach().float().cpu()
        if not bool((self.count > 10).all()):
            return torch.full_like(history, 1 / len(history))
        weight = torch.sqrt(history + 1e-10) + 1e-4
        # The first time's term is a likelihood, not a divergence, and on another scale: the
        # published code lets it borrow its neighbour's weight.
        weight[0] = weight[min(1, len(weight) - 1)]
        return weight / weight.sum()

    def draw(self, batch: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Times t [B] int64 in 1..T and the probability of each [B], both on the CPU."""
        probabilities = self.probabilities()
        index = torch.multinomial(probabilities, batch, replacement=True, generator=generator)
        return index + 1, probabilities[index]

    @torch.no_grad()
    def update(self, t: Tensor, loss: Tensor) -> None:
        """Record the losses [B] (divergences summed over an item's tokens) met at times t [B].

        Items that share a t count with their mean, so that the result does not depend on order.
        """
        index = (t - 1).to(self.history.device)
        squared = loss.detach().to(self.history) ** 2
        drawn = torch.zeros_like(self.count).index_add_(0, index, torch.ones_like(index))
        mean = torch.zeros_like(self.history).index_add_(0, index, squared) / drawn.clamp_min(1)
        self.history.copy_(torch.where(drawn > 0, 0.9 * self.history + 0.1 * mean, self.history))
        self.count.add_(drawn)
