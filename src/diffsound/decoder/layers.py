"""The parts both transformers are made of: attention, feed-forward, AdaLN, learned positions."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsound.decoder.config import Activation


def gelu2(x: Tensor) -> Tensor:
    """x * sigmoid(1.702 x), the published activation."""
    if torch.is_grad_enabled():
        return x * torch.sigmoid(1.702 * x)
    # The same function as a scaled SiLU, in place: the hidden layer is the largest tensor of a
    # step, and it is not needed again.
    return F.silu(x.mul_(1.702), inplace=True).div_(1.702)


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "gelu2": gelu2}


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, N, H*d] -> [B, H, N, d]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """[B, H, N, d] -> [B, N, H*d]."""
    return x.transpose(1, 2).flatten(2)


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself, q, k and v in one product."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, N, W] -> q, k, v, each [B, H, N, d]."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return split_heads(q, self.heads), split_heads(k, self.heads), split_heads(v, self.heads)

    def forward(self, x: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """x [B, N, W]; mask bool, True where attended, broadcast to [B, H, N, N]."""
        q, k, v = self.project(x)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.out(merge_heads(attended))


class CrossAttention(nn.Module):
    """Multi-head attention to the text, whose keys and values are made apart, once per text."""

    def __init__(self, width: int, heads: int, text_dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(text_dim, 2 * width)
        self.out = nn.Linear(width, width)

    def project_text(self, text: Tensor) -> tuple[Tensor, Tensor]:
        """text [B, S, D] -> keys and values, each [B, H, S, d]."""
        keys, values = self.key_value(text).chunk(2, dim=-1)
        return split_heads(keys, self.heads), split_heads(values, self.heads)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """x [B, N, W]; keys, values [B, H, S, d]; mask bool [B, 1, 1, S], True where attended."""
        q = split_heads(self.query(x), self.heads)
        attended = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return self.out(merge_heads(attended))


class FeedForward(nn.Module):
    """Two dense layers with an activation between them."""

    def __init__(self, width: int, ratio: int, activation: Activation) -> None:
        super().__init__()
        self.up = nn.Linear(width, ratio * width)
        self.down = nn.Linear(ratio * width, width)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


class AdaptiveNorm(nn.Module):
    """AdaLN: a layer norm whose scale and shift come from the timestep.

    They depend on t (and the pooled text) only, never on the tokens, so `modulation` is apart
    from `forward` and a generation computes it once for all its steps.
    """

    def __init__(self, width: int, timesteps: int) -> None:
        super().__init__()
        self.width = width
        self.timestep = nn.Embedding(timesteps, width)
        self.linear = nn.Linear(width, 2 * width)

    def modulation(self, t: Tensor, pooled: Tensor | None = None) -> Tensor:
        """t [...] in 1..T, pooled [..., W] -> [..., 2, W]: the factor (1 + scale) and the shift."""
        condition = self.timestep(t - 1)
        if pooled is not None:
            condition = condition + pooled
        scale, shift = self.linear(F.silu(condition)).chunk(2, dim=-1)
        return torch.stack((1 + scale, shift), dim=-2)

    def forward(self, x: Tensor, modulation: Tensor) -> Tensor:
        """x [B, N, W]; modulation [B, 2, W], or [1, 2, W] when the batch shares it."""
        factor, shift = modulation.to(x.dtype).unbind(-2)
        if factor.shape[0] == 1:  # then it is an ordinary affine layer norm: one kernel
            return F.layer_norm(x, (self.width,), factor[0], shift[0])
        normed = F.layer_norm(x, (self.width,))
        return torch.addcmul(shift[:, None], normed, factor[:, None])


def stretch(table: Tensor, length: int) -> Tensor:
    """Learned positions [n, ...] for `length` places: the first ones, or all of them interpolated.

    Beyond the learned length linear interpolation keeps every place distinct, ordered and within
    what was learned; the end places keep their vectors.
    """
    learned = table.shape[0]
    if length <= learned:
        return table[:length]
    place = torch.linspace(0, learned - 1, length, device=table.device, dtype=torch.float64)
    below = place.long().clamp(max=max(learned - 2, 0))
    above = (below + 1).clamp(max=learned - 1)
    share = (place - below).to(table.dtype).reshape(-1, *[1] * (table.dim() - 1))
    return torch.lerp(table[below], table[above], share)
