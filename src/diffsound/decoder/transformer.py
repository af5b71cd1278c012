"""Diffsound's denoising transformer: noisy tokens, timestep and text to logits of x0.

What does not depend on the tokens is computed apart and once: the text's keys and values
(`read_text`) and the timesteps' scales and shifts (`modulations`).
"""

from __future__ import annotations

from dataclasses import dataclass

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
from diffsound.decoder.config import DiffsoundConfig
from diffsound.decoder.layers import AdaptiveNorm, CrossAttention, FeedForward, SelfAttention
from diffsound.text.features import TextFeatures


@dataclass(frozen=True)
class TextContext:
    """What the blocks need of a batch of texts.

    keys, values: per block [B, H, S, d]; mask: bool [B, 1, 1, S], True where attended, or None
    when every position is; pooled: [B, W] for the AdaLN, or None when it is not used.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    mask: Tensor | None
    pooled: Tensor | None

    def __getitem__(self, which: slice | list[int]) -> TextContext:
        """Of these texts only."""
        return TextContext(
            keys=tuple(keys[which] for keys in self.keys),
            values=tuple(values[which] for values in self.values),
            mask=None if self.mask is None else self.mask[which],
            pooled=None if self.pooled is None else self.pooled[which],
        )


class Block(nn.Module):
    """Pre-norm self-attention, cross-attention to the text, feed-forward."""

    def __init__(self, config: DiffsoundConfig) -> None:
        super().__init__()
        width, heads = config.width, config.heads
        self.norm_self = AdaptiveNorm(width, config.timesteps)
        self.self_attention = SelfAttention(width, heads)
        self.norm_cross = AdaptiveNorm(width, config.timesteps)
        self.cross_attention = CrossAttention(width, heads, config.text_dim)
        self.norm_mlp = nn.LayerNorm(width)
        self.local: nn.Conv1d | None = None
        if config.local:
            self.local = nn.Conv1d(
                width, width, config.local, padding=config.local // 2, groups=width
            )
        self.mlp = FeedForward(width, config.mlp_ratio, config.activation)
        self.dropout = config.dropout

    def modulation(self, t: Tensor, pooled: Tensor | None) -> Tensor:
        """t [...] -> [..., 4, W]: factor and shift of the two adaptive norms."""
        return torch.cat(
            (self.norm_self.modulation(t, pooled), self.norm_cross.modulation(t, pooled)), dim=-2
        )

    def forward(
        self, x: Tensor, modulation: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """x [B, N, W]; modulation [B or 1, 4, W]; keys, values [B, H, S, d]."""
        x = x + self._drop(self.self_attention(self.norm_self(x, modulation[:, :2])))
        normed = self.norm_cross(x, modulation[:, 2:])
        x = x + self._drop(self.cross_attention(normed, keys, values, mask))
        normed = self.norm_mlp(x)
        if self.local is not None:
            normed = normed + self.local(normed.transpose(1, 2)).transpose(1, 2)
        return x + self._drop(self.mlp(normed))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


def of_rows(cells: Tensor, rows: Tensor) -> Tensor:
    """The rows [n], or rows [B, n] of each item, of cells [B, F', ...]: [B, n, ...]."""
    if rows.dim() == 1:
        return cells[:, rows]
    return cells[torch.arange(len(rows), device=rows.device)[:, None], rows]


class DenoisingTransformer(nn.Module):
    """tokens x_t [B, F', L'] (mask index K), t, text -> logits of x0 [B, F', L', K]."""

    def __init__(self, config: DiffsoundConfig) -> None:
        super().__init__()
        self.config = config
        # Trades a second forward pass for the activations' memory in training.
        self.gradient_checkpointing = False
        width, entries = config.width, config.codebook_size + 1
        self.codes: nn.Module
        self.logits: nn.Module
        self.positions: nn.Module
        if config.position == "cell":
            self.codes = nn.Embedding(entries, width)
            self.positions = CellPositions(
                config.rows, config.columns, width, config.position_scheme == "official"
            )
            self.logits = nn.Linear(width, config.codebook_size)
        else:
            self.codes = ColumnEmbedding(config.rows, entries, width, config.code_width)
            self.positions = ColumnPositions(config.columns, width)
            self.logits = ColumnLogits(config.rows, config.codebook_size, width, config.code_width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.pooled = nn.Linear(config.text_dim, width) if config.pooled_text else None
        self.apply(init_weights)

    def read_text(self, text: TextFeatures) -> TextContext:
        """Keys and values of every block for a batch of texts."""
        features = text.features
        if self.config.normalise_text:
            features = F.normalize(features, dim=-1)
        pairs = [block.cross_attention.project_text(features) for block in self._blocks()]
        masked = not self.config.attend_padding and not bool(text.mask.all())
        return TextContext(
            keys=tuple(keys for keys, _ in pairs),
            values=tuple(values for _, values in pairs),
            mask=text.mask[:, None, None, :] if masked else None,
            pooled=None if self.pooled is None else self.pooled(text.pooled),
        )

    def modulations(self, t: Tensor, pooled: Tensor | None) -> tuple[Tensor, ...]:
        """t [...] in 1..T and the context's pooled [..., W] -> per block [..., 4, W]."""
        return tuple(block.modulation(t, pooled) for block in self._blocks())

    def forward(
        self,
        tokens: Tensor,
        modulations: tuple[Tensor, ...],
        context: TextContext,
        rows: Tensor | None = None,
    ) -> Tensor:
        """tokens [B, F', L'] -> logits [B, F', L', K]; modulations per block [B or 1, 4, W].

        rows: int64 [n] or [B, n], the rows whose logits are wanted: [B, n, L', K] then. With one
        position per column the others are not computed.
        """
        x = self._embed(tokens)
        for block, modulation, keys, values in zip(
            self.blocks, modulations, context.keys, context.values, strict=True
        ):
            if self.gradient_checkpointing and self.training:
                x = checkpoint(
                    block, x, modulation, keys, values, context.mask, use_reentrant=False
                )
            else:
                x = block(x, modulation, keys, values, context.mask)
        if self.config.position == "column":
            return self.logits(self.norm(x), rows).transpose(1, 2)
        logits = self.logits(self.norm(x)).unflatten(1, (-1, self.config.rows)).transpose(1, 2)
        return logits if rows is None else of_rows(logits, rows)

    def _embed(self, tokens: Tensor) -> Tensor:
        columns = tokens.shape[-1]
        if self.config.position == "cell":
            return self.codes(grids.flatten(tokens)) + self.positions(columns)
        return self.codes(grids.by_column(tokens)) + self.positions(columns)

    def _blocks(self) -> list[Block]:
        return list(self.blocks)  # type: ignore[arg-type]
