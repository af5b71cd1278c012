"""The AR decoder's transformer: a prefix of text, then steps of tokens, each predicting the next.

A step is one cell (the paper) or, with `position: column`, one delayed column (grid.delay).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from diffsound.decoder import codes as grids
from diffsound.decoder.codes import (
    CellPositions,
    ColumnEmbedding,
    ColumnLogits,
    ColumnPositions,
    init_weights,
)
from diffsound.decoder.config import ARConfig
from diffsound.decoder.layers import FeedForward, SelfAttention, merge_heads, stretch
from diffsound.text.features import TextFeatures


class LayerCache:
    """Keys and values of one block, [B, H, capacity, d], allocated once and filled in place."""

    def __init__(self, shape: tuple[int, int, int, int], like: Tensor) -> None:
        self.keys = like.new_empty(shape)
        self.values = like.new_empty(shape)
        self.length = 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add n places and return all there are, [B, H, length, d]."""
        end = self.length + keys.shape[2]
        self.keys[:, :, self.length : end] = keys
        self.values[:, :, self.length : end] = values
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]


class CausalBlock(nn.Module):
    """Pre-norm causal self-attention and feed-forward."""

    def __init__(self, config: ARConfig) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(config.width)
        self.attention = SelfAttention(config.width, config.heads)
        self.norm_mlp = nn.LayerNorm(config.width)
        self.mlp = FeedForward(config.width, config.mlp_ratio, config.activation)
        self.dropout = config.dropout

    def forward(self, x: Tensor, mask: Tensor | None, cache: LayerCache | None = None) -> Tensor:
        """x [B, n, W]; mask bool over keys, or None for a plain causal pass."""
        normed = self.norm_attention(x)
        if cache is None:
            attended = self.attention(normed, mask, causal=mask is None)
        else:
            q, k, v = self.attention.project(normed)
            k, v = cache.append(k, v)
            # A single new place may attend to all there is; several only come first, together.
            causal = mask is None and x.shape[1] > 1
            attended = self.attention.out(
                merge_heads(
                    F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
                )
            )
        x = x + F.dropout(attended, self.dropout, self.training)
        return x + F.dropout(self.mlp(self.norm_mlp(x)), self.dropout, self.training)


class SequencePositions(nn.Embedding):
    """The published positions: one vector per place of the sequence, the condition's first."""

    def __init__(self, rows: int, columns: int, width: int) -> None:
        super().__init__(1 + rows * columns, width)
        self.rows = rows

    def forward(self, columns: int) -> Tensor:  # type: ignore[override]
        """Positions of the cells of a grid of `columns` columns: [columns * F', W]."""
        table = self.weight[1:].unflatten(0, (-1, self.rows))
        return stretch(table, columns).flatten(0, 1)


class CausalTransformer(nn.Module):
    """Text prefix and steps of tokens -> logits of the step after each."""

    def __init__(self, config: ARConfig) -> None:
        super().__init__()
        self.config = config
        # Trades a second forward pass for the activations' memory in training.
        self.gradient_checkpointing = False
        width, size = config.width, config.codebook_size
        self.text = nn.Linear(config.text_dim, width)
        # With one vector per text token the first prediction needs a place of its own, the same
        # for every length of text.
        self.start = nn.Embedding(1, width) if config.condition == "tokens" else None
        self.codes: nn.Module
        self.logits: nn.Module
        self.positions: nn.Module
        if config.position == "column":
            self.codes = ColumnEmbedding(config.rows, size + 1, width, config.code_width)
            self.positions = ColumnPositions(config.columns + config.rows - 1, width)
            self.logits = ColumnLogits(config.rows, size, width, config.code_width)
        else:
            self.codes = nn.Embedding(size, width)
            self.positions = (
                SequencePositions(config.rows, config.columns, width)
                if config.position_scheme == "official"
                else CellPositions(config.rows, config.columns, width)
            )
            self.logits = nn.Linear(width, size, bias=False)
        self.blocks = nn.ModuleList(CausalBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.apply(init_weights)

    def to_steps(self, grid: Tensor, blank: int | bool) -> Tensor:
        """[B, F', L'] -> [B, steps, cells in a step], places without a cell holding `blank`."""
        if self.config.position == "column":
            return grids.delay(grid, blank)
        return grids.flatten(grid).unsqueeze(-1)

    def from_steps(self, steps: Tensor) -> Tensor:
        """The inverse of `to_steps`."""
        if self.config.position == "column":
            return grids.undelay(steps)
        return grids.unflatten(steps.squeeze(-1), self.config.rows)

    def prefix(self, text: TextFeatures) -> tuple[Tensor, Tensor]:
        """The text in front of the sequence: vectors [B, P, W] and mask [B, P]."""
        if self.config.condition == "pooled":
            vector = text.pooled
            if self.config.normalise_text:
                vector = F.normalize(vector, dim=-1)
            prefix = self.text(vector)[:, None]
            if isinstance(self.positions, SequencePositions):
                prefix = prefix + self.positions.weight[0]
            return prefix, text.mask.new_ones(len(text), 1)
        features = text.features
        if self.config.normalise_text:
            features = F.normalize(features, dim=-1)
        assert self.start is not None
        start = self.start.weight.expand(len(text), 1, -1)
        vectors = self.text(features)
        prefix = torch.cat((vectors, start.to(vectors.dtype)), dim=1)
        return prefix, F.pad(text.mask, (0, 1), value=True)

    def step_positions(self, columns: int) -> Tensor:
        """Positions of all steps of a grid of `columns` columns: [steps, W]."""
        if self.config.position == "column":
            return self.positions(columns + self.config.rows - 1)
        return self.positions(columns)

    def embed(self, steps: Tensor, positions: Tensor) -> Tensor:
        """steps [B, n, cells] and their positions [n, W] -> [B, n, W]."""
        codes = steps if self.config.position == "column" else steps.squeeze(-1)
        return self.codes(codes) + positions

    def forward(self, prefix: Tensor, prefix_mask: Tensor, steps: Tensor) -> Tensor:
        """Logits after the prefix and after each step: [B, n + 1, cells, K].

        prefix [B, P, W]; prefix_mask bool [B, P]; steps [B, n, W], embedded.
        """
        x = torch.cat((prefix, steps), dim=1)
        mask = causal_mask(prefix_mask, x.shape[1])
        for block in self.blocks:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(block, x, mask, use_reentrant=False)
            else:
                x = block(x, mask)
        return self.read(x[:, prefix.shape[1] - 1 :])

    def advance(self, x: Tensor, mask: Tensor | None, caches: list[LayerCache]) -> Tensor:
        """Append x [B, n, W] to the caches; logits after its last place, [B, cells, K]."""
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, mask, cache)
        return self.read(x[:, -1:])[:, 0]

    def read(self, x: Tensor) -> Tensor:
        """x [B, n, W] -> logits [B, n, cells, K]."""
        logits = self.logits(self.norm(x))
        return logits if self.config.position == "column" else logits.unsqueeze(2)


def causal_mask(prefix_mask: Tensor, length: int) -> Tensor | None:
    """Bool [B, 1, length, length]: earlier places that are no padding; None when none is padded."""
    if bool(prefix_mask.all()):
        return None
    real = F.pad(prefix_mask, (0, length - prefix_mask.shape[1]), value=True)
    earlier = torch.ones(length, length, dtype=torch.bool, device=real.device).tril()
    return real[:, None, None, :] & earlier
