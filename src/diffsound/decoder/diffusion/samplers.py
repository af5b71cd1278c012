"""Samplers: from noise to clean tokens. Pure functions of network, schedule, start and noise.

All take `predict(tokens [B, ...], t) -> logits [B, ..., K]`, the network's guess of the clean
tokens at time t (guidance, if any, is inside it; `ancestral` with rows in turn asks for some rows
only, by a third argument), and start tokens of any shape [B, ...]. All
return clean tokens of that shape, and draw noise from one CPU generator per item, a block of fixed
size per step, so an item's tokens do not depend on its neighbours.

Cells where `keep` is True hold the `known` tokens at every step, clean rather than noised to time
t. For the mask matrix that is exact: what the network makes of visible tokens does not depend on
how the others were masked. With uniform noise the network trusts a visible token a little less
than it deserves (by ᾱ_t/(ᾱ_t + Kβ̄_t), above one half for nine tenths of the paper's chain), but
noising it too would hide the context just when the cells beside it are decided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from diffsound.decoder.diffusion.process import Generators, Schedule, reverse_probs, uniforms

# Below it the quotient overflows, and the most likely token is drawn anyway.
_COLDEST = 1e-6

Predict = Callable[..., Tensor]
Callback = Callable[[int, int, Tensor], None]  # steps done, steps in all, tokens
CellTimes = Callable[[int], Tensor]  # the chain's t -> times [F'] of the rows of tokens [B, F', …]


def timesteps_for(
    steps: int,
    *,
    num_steps: int | None = None,
    stride: int | None = None,
    start: int | None = None,
) -> list[int]:
    """The times of a chain of T = `steps`: from `start` (T if None) down to 0, inclusive.

    num_steps spreads that many network evaluations evenly; stride goes start, start − Δ, … and
    lands on 0 with a shorter last step if need be; neither means every time.
    """
    start = steps if start is None else start
    if not 1 <= start <= steps:
        raise ValueError(f"start must lie in 1..{steps}, got {start}")
    if num_steps is not None and stride is not None:
        raise ValueError("give num_steps or stride, not both")
    if num_steps is not None:
        if not 1 <= num_steps <= start:
            raise ValueError(f"num_steps must lie in 1..{start}, got {num_steps}")
        return [(start * left + num_steps // 2) // num_steps for left in range(num_steps, -1, -1)]
    stride = 1 if stride is None else stride
    if stride < 1:
        raise ValueError(f"stride must be at least 1, got {stride}")
    return [*range(start, 0, -stride), 0]


@torch.no_grad()
def ancestral(
    predict: Predict,
    schedule: Schedule,
    start: Tensor,
    timesteps: Sequence[int],
    generators: Generators,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    truncation: float = 1.0,
    known: Tensor | None = None,
    keep: Tensor | None = None,
    callback: Callback | None = None,
    cell_times: CellTimes | None = None,
    steps: slice = slice(None),
) -> Tensor:
    """The paper's chain (algorithm 2) with the exact posterior for any stride.

    start: x at time timesteps[0], drawn from p(x_T) or q(x_t|x_0). timesteps: falling, to 0 for
    clean tokens. steps: run only these steps of the chain, from the tokens before them; a chain
    run in parts with the same generators gives what it gives in one piece.
    cell_times: for rows that are noised one after another (`process.py`); None: all cells at t.
    """
    if len(timesteps) < 2 or any(s >= t for t, s in pairwise(timesteps)):
        raise ValueError("timesteps must be at least two falling times")
    shaped = partial(filter_logits, temperature=temperature, top_k=top_k, truncation=truncation)
    tokens = _place(start, known, keep)
    for done, (t, s) in list(enumerate(pairwise(timesteps), 1))[steps]:
        noise = uniforms(generators, tokens.shape, tokens.device)
        if cell_times is None:
            p_x0 = shaped(predict(tokens, t))
            drawn = draw_categorical(reverse_probs(p_x0, tokens, t, s, schedule), noise)
        else:
            later, earlier = cell_times(t), cell_times(s)
            drawn, moving = tokens.clone(), (later > earlier).nonzero().flatten()
            if len(moving):
                p_x0 = shaped(predict(tokens, t, moving))
                t_rows, s_rows = (v[moving].expand(len(tokens), -1) for v in (later, earlier))
                probs = reverse_probs(p_x0, tokens[:, moving], t_rows, s_rows, schedule)
                drawn[:, moving] = draw_categorical(probs, noise[:, moving])
        tokens = _place(drawn, known, keep)
        if callback is not None:
            callback(done, len(timesteps) - 1, tokens)
    return tokens


@torch.no_grad()
def confidence(
    predict: Predict,
    schedule: Schedule,
    start: Tensor,
    num_steps: int,
    generators: Generators,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    truncation: float = 1.0,
    choice_temperature: float = 4.5,
    remask: float = 0.0,
    known: Tensor | None = None,
    keep: Tensor | None = None,
    callback: Callback | None = None,
) -> Tensor:
    """Confidence-ordered parallel unmasking (MaskGIT, MAGNeT): good tokens in few steps.

    Every step draws all masked cells at once and keeps the surest; the number still masked falls
    as a quarter cosine to 0. Sureness is log p of the drawn token plus Gumbel noise, whose scale
    falls from `choice_temperature` (4.5 is MaskGIT's) to 0 with the steps. `remask` is the share
    of the tokens drawn so far that is masked again before each step, the least sure ones.

    start: the mask at the cells to draw, the same number in every item (the network is told the
    time whose share of masks is nearest, one for the batch); all other cells are left as they are.
    """
    if schedule.transition == "uniform":
        raise ValueError("confidence sampling needs a schedule with a mask")
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}")
    if not 0 <= remask < 1:
        raise ValueError(f"remask must lie in [0, 1), got {remask}")
    mask = schedule.mask_index
    tokens = _place(start, known, keep)
    free = tokens == mask
    count, cells = _chosen_per_item(free), tokens[0].numel()
    sureness = torch.full(tokens.shape, torch.inf, device=tokens.device)
    masked_now = count
    for done in range(1, num_steps + 1):
        again = int(remask * (count - masked_now))
        if again:
            drawn_before = free & (tokens != mask)
            unsure = _lowest(sureness.masked_fill(~drawn_before, torch.inf), again)
            tokens = tokens.masked_fill(unsure, mask)
        masked = tokens == mask
        t = _time_of_share(schedule, (masked_now + again) / cells)
        probs = filter_logits(
            predict(tokens, t), temperature=temperature, top_k=top_k, truncation=truncation
        )
        noise = uniforms(generators, (len(tokens), 2, *tokens.shape[1:]), tokens.device)
        drawn = draw_categorical(probs, noise[:, 0])
        log_p = probs.gather(-1, drawn.unsqueeze(-1)).squeeze(-1).log().float()
        masked_now = int(count * math.cos(math.pi / 2 * done / num_steps))
        order = log_p + choice_temperature * (1 - done / num_steps) * gumbel(noise[:, 1])
        later = _lowest(order.masked_fill(~masked, torch.inf), masked_now)
        sureness = torch.where(masked & ~later, log_p, sureness)
        tokens = torch.where(masked & ~later, drawn, tokens)
        if callback is not None:
            callback(done, num_steps, tokens)
    return tokens


@torch.no_grad()
def official(
    predict: Predict,
    schedule: Schedule,
    start: Tensor,
    generators: Generators,
    *,
    stride: int = 1,
    start_step: int | None = None,
    truncation: float = 0.85,
    known: Tensor | None = None,
    keep: Tensor | None = None,
    callback: Callback | None = None,
) -> Tensor:
    """The published code's chain: see `official.py` for how it differs from the paper's.

    start: the published code starts with every cell masked, not from p(x_T).
    """
    from diffsound.decoder.diffusion.official import (
        official_log_x0,
        official_posterior,
        official_timesteps,
    )

    times = official_timesteps(schedule.steps if start_step is None else start_step, stride)
    tokens = _place(start, known, keep)
    for done, (t, t_posterior) in enumerate(times, 1):
        log_p_x0 = official_log_x0(predict(tokens, t), truncation)
        log_probs = official_posterior(log_p_x0, tokens, t_posterior, schedule)
        noise = uniforms(generators, tokens.shape, tokens.device)
        # An inverse-CDF draw of the exponentiated rows is the published Gumbel-argmax in law.
        drawn = draw_categorical(log_probs.exp(), noise)
        tokens = _place(drawn, known, keep)
        if callback is not None:
            callback(done, len(times), tokens)
    return tokens


def mask_share(
    tokens: Tensor, share: float, generators: Generators, schedule: Schedule, keep: Tensor
) -> Tensor:
    """Mask a share of the cells that are not kept, at random, the same number in every item.

    A start for `confidence` near given tokens [B, ...]: each item must keep equally many cells.
    """
    number = round(share * _chosen_per_item(~keep))
    order = uniforms(generators, tokens.shape, tokens.device).masked_fill(keep, torch.inf)
    return tokens.masked_fill(_lowest(order, number), schedule.mask_index)


def _place(tokens: Tensor, known: Tensor | None, keep: Tensor | None) -> Tensor:
    """Tokens with the known ones at the kept cells."""
    if keep is None:
        return tokens
    if known is None:
        raise ValueError("keep needs known tokens")
    return torch.where(keep, known, tokens)


def _chosen_per_item(chosen: Tensor) -> int:
    """How many cells are chosen in each item of a bool tensor [B, ...]; must be equal."""
    counts = chosen.flatten(1).sum(1)
    if (counts != counts[0]).any():
        raise ValueError("every item of a batch must leave the same number of cells to draw")
    return int(counts[0])


def _lowest(values: Tensor, number: int) -> Tensor:
    """True at the `number` lowest values of each item of [B, ...]; ties go to the first cell."""
    order = values.flatten(1).argsort(dim=1, stable=True)[:, :number]
    chosen = torch.zeros(values.shape, dtype=torch.bool, device=values.device).flatten(1)
    return chosen.scatter(1, order, True).view(values.shape)


def _time_of_share(schedule: Schedule, share: float) -> int:
    """The time t ≥ 1 at which the expected share of masks is nearest to `share`."""
    return 1 + int((schedule.masked[1:] - share).abs().argmin())


# From logits to a draw: guidance, temperature, top-k, truncation.


def gumbel(uniform: Tensor) -> Tensor:
    """Standard Gumbel numbers from uniform ones, elementwise; finite for every input in [0, 1)."""
    tiny = torch.finfo(uniform.dtype).tiny
    return -torch.log(-torch.log(uniform.clamp_min(tiny)))


def draw_categorical(probs: Tensor, uniform: Tensor) -> Tensor:
    """Draw one index per row of probs [..., C] by inverse CDF from uniform [...]; int64 [...].

    Rows need not sum to one. A class of probability zero is never drawn: the threshold lies in
    (0, total], and the first class whose cumulative sum reaches it has a positive share.
    """
    cdf = probs.cumsum(-1)
    threshold = (1 - uniform.to(cdf.dtype)).unsqueeze(-1) * cdf[..., -1:]
    return torch.searchsorted(cdf, threshold).squeeze(-1)


def guide(conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance on discrete logits [..., K]: log p_u + scale (log p_c − log p_u).

    Logits serve as well as log-probabilities: they differ by a constant per position, which the
    later softmax removes. Scale 1 gives the conditional distribution, 0 the unconditional one.
    """
    return unconditional + scale * (conditional - unconditional)


def filter_logits(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    truncation: float = 1.0,
) -> Tensor:
    """Logits [..., K] to the probabilities [..., K] to draw from, in float32 or better.

    temperature divides the logits (0 means the most likely token, always); top_k keeps that many
    tokens; truncation then keeps the smallest set whose mass reaches it. What is kept is
    renormalised.
    """
    if temperature < 0:
        raise ValueError(f"temperature must not be negative, got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")
    if not 0 < truncation <= 1:
        raise ValueError(f"truncation must lie in (0, 1], got {truncation}")
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature < _COLDEST:
        return one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
    if temperature != 1:
        logits = logits / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        weakest = logits.topk(top_k, -1).values[..., -1:]
        logits = logits.masked_fill(logits < weakest, -torch.inf)
    probs = logits.softmax(-1)
    if truncation < 1:
        probs = probs * truncation_mask(probs, truncation)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def truncation_mask(probs: Tensor, mass: float) -> Tensor:
    """True at the smallest set of the most likely tokens whose mass reaches `mass`; [..., K].

    The token that crosses the mark is in the set, so the set is never empty.
    """
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1).roll(1, -1)  # mass of the tokens that are more likely
    kept = before < mass
    kept[..., 0] = True
    return torch.zeros_like(probs, dtype=torch.bool).scatter(-1, order, kept)
