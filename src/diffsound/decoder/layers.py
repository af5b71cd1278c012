"""The parts both transformers are made of: attention, feed-forward, AdaLN; tokens as sequences,
vectors and logits, cell by cell or a whole column at a time.

The order of cells is fixed here alone. A grid is [..., F', L'] (rows of frequency, columns of
time); its sequence is time-major, as published: cell (row, column) is at i = column * F' + row.
"""

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


class ColumnEmbedding(nn.Module):
    """The sum of the rows' embeddings: tokens [B, L', F'] -> [B, L', W].

    Each row has its own `entries` vectors. With a code width they are joined and projected, which
    is a sum of per-row projections and has far fewer parameters.
    """

    def __init__(self, rows: int, entries: int, width: int, code_width: int | None) -> None:
        super().__init__()
        self.codes = nn.Embedding(rows * entries, code_width or width)
        self.project = nn.Linear(rows * code_width, width) if code_width else None
        self.entries = entries

    def reset_parameters(self) -> None:
        """Give the projected sum the spread that a sum of N(0, 0.02) vectors would have."""
        if self.project is not None:
            nn.init.normal_(self.project.weight, std=self.codes.embedding_dim**-0.5)

    @torch.no_grad()
    def start_from(self, codes: Tensor) -> None:
        """Begin with vectors [F', K, code width] that say how codes sound.

        Of length about 1 per entry, where learning changes them slowly, and all rows projected
        alike, so that a column begins as the sum of its codes. The mask keeps its random vector.
        """
        assert self.project is not None
        rows, size, width = codes.shape
        table = self.codes.weight.view(rows, self.entries, width)
        table.mul_(0.5 / 0.02)
        table[:, :size] = codes
        one = self.project.weight.view(-1, rows, width)[:, :1] * 0.1
        self.project.weight.copy_(one.expand(-1, rows, -1).flatten(1))

    @torch.no_grad()
    def folded(self) -> ColumnEmbedding:
        """The same without a projection, for inference: every code's vector already projected.

        A lookup instead of a long product, and unlike that it rounds alike on any number of cores.
        """
        if self.project is None:
            return self
        rows = self.project.in_features // self.codes.embedding_dim
        folded = ColumnEmbedding(rows, self.entries, self.project.out_features, None)
        codes = self.codes.weight.view(rows, self.entries, -1)
        parts = self.project.weight.view(-1, rows, codes.shape[2]).permute(1, 2, 0)
        table = torch.bmm(codes, parts)  # [F', entries, W]
        table[0] += self.project.bias
        folded.codes.weight.copy_(table.flatten(0, 1))
        return folded

    def forward(self, tokens: Tensor) -> Tensor:
        rows = torch.arange(tokens.shape[-1], device=tokens.device)
        codes = self.codes(tokens + rows * self.entries)
        return codes.sum(-2) if self.project is None else self.project(codes.flatten(-2))


class ColumnLogits(nn.Module):
    """One head per row: x [B, L', W] -> logits [B, L', F', K], or of some of the rows."""

    def __init__(self, rows: int, codebook_size: int, width: int, code_width: int | None) -> None:
        super().__init__()
        self.rows = rows
        self.project = nn.Linear(width, rows * (code_width or codebook_size))
        self.codes: nn.Parameter | None = None
        if code_width:
            self.codes = nn.Parameter(torch.empty(rows, code_width, codebook_size))
            self.bias = nn.Parameter(torch.empty(rows, 1, codebook_size))

    def reset_parameters(self) -> None:
        """Give the logits the spread that one N(0, 0.02) head would have."""
        if self.codes is not None:
            nn.init.normal_(self.codes, std=self.codes.shape[1] ** -0.5)
            nn.init.zeros_(self.bias)

    @torch.no_grad()
    def start_from(self, codes: Tensor) -> None:
        """Begin with vectors [F', K, code width], see `ColumnEmbedding.start_from`."""
        assert self.codes is not None
        self.codes.copy_(codes.transpose(1, 2))
        self.project.weight.mul_(codes.shape[2] ** -0.5)

    def forward(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """rows: int64 [n], the rows wanted of every item, or [B, n], those wanted of each."""
        projected = self.project(x).unflatten(-1, (self.rows, -1))
        if rows is not None and rows.dim() == 2:
            return self._of_each(projected, rows)
        if rows is not None:
            projected = projected[:, :, rows]
        if self.codes is None:
            return projected
        every = slice(None) if rows is None else rows
        codes, bias = self.codes[every], self.bias[every]
        by_row = projected.flatten(0, 1).transpose(0, 1)  # [F', B*L', code width]
        logits = torch.baddbmm(bias.to(by_row.dtype), by_row, codes.to(by_row.dtype))
        return logits.transpose(0, 1).unflatten(0, x.shape[:2])

    def _of_each(self, projected: Tensor, rows: Tensor) -> Tensor:
        items = torch.arange(len(rows), device=rows.device)[:, None]
        chosen = projected.transpose(1, 2)[items, rows]  # [B, n, L', code width]
        if self.codes is not None:
            logits = torch.matmul(chosen, self.codes.to(chosen.dtype)[rows])
            chosen = logits + self.bias.to(chosen.dtype)[rows]
        return chosen.transpose(1, 2)


def codes_of(codebooks: Tensor, width: int) -> Tensor:
    """How residual codes sound, for `start_from`: [F', K, d] -> [F', K, width ≤ d].

    A column's level and slope vary a hundred times more than its details, and the first row's codes
    more than the last one's: both are brought nearer to each other by a square root, so that
    details are seen, and the whole to a mean square of 1. Of the d numbers the `width` directions
    are kept in which codes differ most.
    """
    spread = codebooks.square().mean((0, 1)).sqrt()  # [d]
    sounds = codebooks / spread.clamp_min(1e-6).sqrt()
    sizes = sounds.square().mean((1, 2), keepdim=True).sqrt()  # [F', 1, 1]
    sounds = sounds / sizes.clamp_min(1e-6).sqrt()
    if width < sounds.shape[2]:
        flat = sounds.flatten(0, 1)
        sounds = sounds @ torch.linalg.eigh(flat.T @ flat).eigenvectors[:, -width:]
    return sounds / sounds.square().mean().sqrt()


class CellPositions(nn.Module):
    """Learned positions of a grid's cells: one vector per row and one per column, added.

    The published code indexes the two tables by the time-major sequence as if it were
    frequency-major; `scrambled` keeps that.
    """

    def __init__(self, rows: int, columns: int, width: int, scrambled: bool = False) -> None:
        super().__init__()
        self.row = nn.Embedding(rows, width)
        self.column = nn.Embedding(columns, width)
        self.scrambled = scrambled

    def forward(self, columns: int) -> Tensor:
        """Positions of a grid of `columns` columns, in sequence order: [columns * F', W]."""
        row, column = self.row.weight, self.column.weight
        if self.scrambled:  # sequence place i has row[i // columns] + column[i mod columns]
            table = (row[:, None] + column[None, :]).flatten(0, 1).unflatten(0, (-1, len(row)))
        else:
            table = column[:, None] + row[None, :]
        return stretch(table, columns).flatten(0, 1)


class ColumnPositions(nn.Embedding):
    """Learned positions, one vector per column."""

    def forward(self, columns: int) -> Tensor:  # type: ignore[override]
        """Positions of `columns` columns: [columns, W]."""
        return stretch(self.weight, columns)


def init_weights(module: nn.Module) -> None:
    """N(0, 0.02) for weights and zero biases, as published; for `Module.apply`."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, ColumnEmbedding | ColumnLogits):  # visited after their own parts
        module.reset_parameters()


def flatten(grid: Tensor) -> Tensor:
    """Cells in sequence order: [..., F', L'] -> [..., L' * F']."""
    return grid.transpose(-1, -2).flatten(-2)


def unflatten(sequence: Tensor, rows: int) -> Tensor:
    """The inverse of `flatten`: [..., L' * F'] -> [..., F', L']."""
    return sequence.unflatten(-1, (-1, rows)).transpose(-1, -2)


def by_column(grid: Tensor) -> Tensor:
    """One entry per column, its rows inside: [..., F', L'] -> [..., L', F']."""
    return grid.transpose(-1, -2)


def delay(grid: Tensor, blank: int | bool) -> Tensor:
    """Columns as steps, row r delayed by r: [..., F', L'] -> [..., L' + F' - 1, F'].

    Step s holds the cells (r, s - r), so the rows of one column follow each other while every step
    still draws one cell of each row. Places without a cell hold `blank`.
    """
    rows, columns = grid.shape[-2:]
    steps = grid.new_full((*grid.shape[:-2], columns + rows - 1, rows), blank)
    for row in range(rows):
        steps[..., row : row + columns, row] = grid[..., row, :]
    return steps


def undelay(steps: Tensor) -> Tensor:
    """The inverse of `delay`: [..., L' + F' - 1, F'] -> [..., F', L']."""
    count, rows = steps.shape[-2:]
    columns = count - rows + 1
    return torch.stack([steps[..., row : row + columns, row] for row in range(rows)], dim=-2)
