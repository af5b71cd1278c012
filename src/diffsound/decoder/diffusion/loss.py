"""Training losses in nats per token: the variational bound, its auxiliary term, a simpler one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from diffsound.decoder.diffusion.process import Schedule, log_reverse_probs, posterior


@dataclass(frozen=True)
class LossTerms:
    """Per item [B], in nats per token.

    loss: to differentiate; an unbiased estimate of eq. 25 without its constant L_T.
    kl: D_KL(q(x_{t−1}|x_t,x_0) ‖ p(x_{t−1}|x_t)) of the one drawn t, detached.
    x0_nll: −log p(x_0|x_t) of the one drawn t (eq. 24), detached.
    """

    loss: Tensor
    kl: Tensor
    x0_nll: Tensor


def diffusion_loss(
    logits: Tensor,
    x0: Tensor,
    xt: Tensor,
    t: Tensor,
    schedule: Schedule,
    *,
    auxiliary_weight: float = 1e-4,
    adaptive: bool = False,
    t_probability: Tensor | None = None,
) -> LossTerms:
    """L_vlb + λ L_x0 (eq. 22–25) of clean tokens x0 [B, ...], noised to xt at times t [B].

    logits: [B, ..., K], the network's prediction of x0 from xt. auxiliary_weight: λ, 1e-4 in the
    paper and 5e-4 in the published code, which also grows it over time (`adaptive`: by 1 + index/T
    with the index t − 1). t_probability: [B], with what probability each t was drawn; None means
    uniformly. The sum over t is estimated by one t, divided by its probability.
    """
    log_p = _log_p(logits)
    x0_nll = _mean(_nll(log_p, x0))
    kl = _mean(_kl(log_p, x0, xt, t, schedule))
    weight = torch.full_like(kl, auxiliary_weight)
    if adaptive:
        weight = weight * (1 + (t - 1).to(weight) / schedule.steps)
    if t_probability is None:
        times = torch.full_like(kl, schedule.steps)
    else:
        times = 1 / t_probability.to(kl)
    return LossTerms((kl + weight * x0_nll) * times, kl.detach(), x0_nll.detach())


def _kl(log_p: Tensor, x0: Tensor, xt: Tensor, t: Tensor, schedule: Schedule) -> Tensor:
    """D_KL(q(x_{t−1}|x_t,x_0) ‖ p(x_{t−1}|x_t)) per cell [B, ...].

    At t = 1 the posterior is certain of x_0, so this is the negative log-likelihood of x_0 under
    p(x_0|x_1): the first term of the bound needs no case of its own.
    """
    true = posterior(x0, xt, t, t - 1, schedule, log_p.dtype)
    predicted = log_reverse_probs(log_p, xt, t, t - 1, schedule)
    return (torch.xlogy(true, true) - true * predicted).sum(-1)


def simplified_loss(logits: Tensor, x0: Tensor, xt: Tensor, schedule: Schedule) -> Tensor:
    """Cross-entropy of x0 [B, ...] on the cells the network has to guess; per item [B].

    The bound without its weights per t, which trains small networks faster. The mask matrix asks
    about masked cells only (a visible token is right); with uniform noise any token may be wrong,
    so every cell counts. The mean is over the cells that count (0 if there are none).
    """
    return _mean_guessed(_nll(_log_p(logits), x0), xt, schedule, keep=1)


def rows_loss(
    logits: Tensor, x0: Tensor, xt: Tensor, schedule: Schedule, weights: Tensor
) -> Tensor:
    """The simplified loss of a few rows [B, n, L'], weighed by weights [B, n]; per item [B].

    Each row is a mean over its own cells; a row without a cell to guess has no weight.
    """
    nll = _mean_guessed(_nll(_log_p(logits), x0), xt, schedule, keep=2)
    if schedule.transition == "mask":
        weights = weights * (xt == schedule.mask_index).any(-1).to(weights)
    return (nll * weights).sum(1) / weights.sum(1).clamp_min(torch.finfo(nll.dtype).tiny)


def rows_in_turn(
    times: Tensor, windows: Tensor, count: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Rows to ask about at these times of rows [B, F'], and how many turns ahead each is: [B, n].

    Rows of the turns before are clean (time 0), rows of the turns after fully noised. Of the
    current turn `count` rows are picked at random, or all if there are no more, then rows of the
    turns after it; n is count + 1, so one at least is of a later turn until the last.
    """
    turn = torch.cat((torch.zeros(1), (windows.diff(dim=0) != 0).any(1).cumsum(0)))  # [F']
    clean = (times == 0).sum(1).clamp(max=times.shape[1] - 1)
    ahead = turn - turn[clean][:, None]  # [B, F']: below 0 before, 0 in the current turn
    order = ahead + 0.5 * torch.rand(ahead.shape, generator=generator)
    order = torch.where(ahead < 0, torch.inf, order)
    rank = order.argsort(1).argsort(1)
    surplus = (ahead == 0) & (rank >= count)
    rows = torch.where(surplus, order + len(windows), order).argsort(1)[:, : count + 1]
    return rows, ahead.gather(1, rows)


def _mean_guessed(nll: Tensor, xt: Tensor, schedule: Schedule, keep: int) -> Tensor:
    """The mean over the cells that count, of all axes but the first `keep`; 0 if there are none."""
    if schedule.transition != "mask":
        return nll.flatten(keep).mean(-1)
    guessed = (xt == schedule.mask_index).to(nll)
    return (nll * guessed).flatten(keep).sum(-1) / guessed.flatten(keep).sum(-1).clamp_min(1)


def _log_p(logits: Tensor) -> Tensor:
    """log p(x_0) in float32 or better."""
    return log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), -1)


def _nll(log_p: Tensor, x0: Tensor) -> Tensor:
    """−log p(x_0) per cell."""
    return -log_p.gather(-1, x0.unsqueeze(-1)).squeeze(-1)


def _mean(values: Tensor) -> Tensor:
    """Mean over all but the first axis."""
    return values.flatten(1).mean(1)


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
