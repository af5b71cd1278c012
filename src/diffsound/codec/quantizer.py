"""From latents to tokens and back: straight-through lookup with the paper's two terms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffsound.codec.codebook import Codebooks
from diffsound.codec.config import QuantizerConfig


@dataclass(frozen=True)
class Quantized:
    """codes: [B, P, d, L'] with the gradient of the latent; tokens: int64 [B, F', L'].

    codebook_loss, commitment_loss: the second and third term of eq. 2–3, scalars, unweighted.
    """

    codes: Tensor
    tokens: Tensor
    codebook_loss: Tensor
    commitment_loss: Tensor


class ParallelQuantizer(nn.Module):
    """Each row of the latent has its token; the rows share a codebook or have one each."""

    def __init__(self, config: QuantizerConfig, rows: int) -> None:
        super().__init__()
        self.groups = 1 if config.layout == "shared" else rows
        self.rows = rows
        self.codebooks = Codebooks(config, self.groups)

    @property
    def restarts(self) -> int:
        """Codes moved because nobody used them, since training began."""
        return self.codebooks.restart_count

    def forward(self, latent: Tensor, generator: torch.Generator | None = None) -> Quantized:
        """[B, F', d, L'] → tokens [B, F', L'] and codes of the latent's shape."""
        tokens, chosen = self.codebooks(self._fold(latent.transpose(2, 3)), generator)
        codes = self._unfold(chosen, latent.shape[0]).transpose(2, 3)
        return Quantized(
            codes=_straight_through(latent, codes),
            tokens=self._unfold(tokens, latent.shape[0]),
            codebook_loss=F.mse_loss(codes, latent.detach()),
            commitment_loss=F.mse_loss(latent, codes.detach()),
        )

    def lookup(self, tokens: Tensor) -> Tensor:
        """Tokens [B, F', L'] → codes [B, F', d, L']."""
        codes = self.codebooks.lookup(self._fold(tokens))
        return self._unfold(codes, tokens.shape[0]).transpose(2, 3)

    def _fold(self, x: Tensor) -> Tensor:
        """[B, F', L', …] → [G, N, …]: rows of one codebook become one list."""
        x = x.unflatten(1, (self.groups, -1)).transpose(0, 1)
        return x.flatten(1, 3)

    def _unfold(self, x: Tensor, batch: int) -> Tensor:
        """[G, N, …] → [B, F', L', …]."""
        x = x.unflatten(1, (batch, self.rows // self.groups, -1))
        return x.transpose(0, 1).flatten(1, 2)


class ResidualQuantizer(nn.Module):
    """A column is coded in stages, each coding what the ones before left; stages are the rows."""

    def __init__(self, config: QuantizerConfig, rows: int) -> None:
        super().__init__()
        self.beam = config.beam
        self.stages = nn.ModuleList(Codebooks(config, 1) for _ in range(rows))

    @property
    def restarts(self) -> int:
        """Codes moved because nobody used them, since training began."""
        return sum(stage.restart_count for stage in self.books())

    def forward(self, latent: Tensor, generator: torch.Generator | None = None) -> Quantized:
        """[B, 1, d, L'] → tokens [B, stages, L'] and codes of the latent's shape."""
        batch, _, dim, columns = latent.shape
        vectors = latent[:, 0].transpose(1, 2).reshape(1, -1, dim)  # [1, B·L', d]
        if self.beam > 1 and not self.training:
            return self._searched(latent, vectors[0])
        codes = torch.zeros_like(vectors)
        tokens: list[Tensor] = []
        codebook_losses: list[Tensor] = []
        commitment_losses: list[Tensor] = []
        for stage in self.books():
            residual = vectors - codes.detach()
            indices, chosen = stage(residual, generator)
            tokens.append(indices.view(batch, columns))
            codebook_losses.append(F.mse_loss(chosen, residual.detach()))
            commitment_losses.append(F.mse_loss(residual, chosen.detach()))
            codes = codes + chosen
        codes = codes.view(batch, columns, dim).transpose(1, 2)[:, None]
        return Quantized(
            codes=_straight_through(latent, codes),
            tokens=torch.stack(tokens, dim=1),
            codebook_loss=torch.stack(codebook_losses).mean(),
            commitment_loss=torch.stack(commitment_losses).mean(),
        )

    def _searched(self, latent: Tensor, vectors: Tensor) -> Quantized:
        """As `forward`, the stages' codes chosen together: `beam_search` over the columns."""
        batch, columns = latent.shape[0], latent.shape[3]
        books = torch.stack([stage.codes[0] for stage in self.books()])
        tokens = beam_search(vectors, books, self.beam).unflatten(0, (batch, columns))
        tokens = tokens.transpose(1, 2)
        codes = self.lookup(tokens)
        distance = F.mse_loss(codes, latent)
        return Quantized(_straight_through(latent, codes), tokens, distance, distance)

    def lookup(self, tokens: Tensor) -> Tensor:
        """Tokens [B, stages, L'] → the sum of their codes [B, 1, d, L'].

        Those of the first stages only, [B, k, L'], have a sum too: a coarser one.
        """
        batch, stages, columns = tokens.shape
        codes = torch.stack(
            [
                stage.lookup(tokens[:, index].reshape(1, -1))
                for index, stage in enumerate(self.books()[:stages])
            ]
        ).sum(0)
        return codes.view(batch, columns, -1).transpose(1, 2)[:, None]

    def books(self) -> list[Codebooks]:
        """The stages' codebooks, in order."""
        return [stage for stage in self.stages if isinstance(stage, Codebooks)]


Quantizer = ParallelQuantizer | ResidualQuantizer

# Products of vectors and codes held at once: 64 MB in float32.
_SEARCHED = 1 << 24


@torch.no_grad()
def beam_search(vectors: Tensor, books: Tensor, beam: int) -> Tensor:
    """Residual codes whose sum is near each vector: [N, d], [stages, K, d] → int64 [N, stages].

    Stage by stage the `beam` best sums are kept. One is the greedy search; as many as there are
    combinations would be the exact one.
    """
    block = max(1, _SEARCHED // (beam * books.shape[1]))
    return torch.cat([_search_block(part, books, beam) for part in vectors.split(block)])


def _search_block(vectors: Tensor, books: Tensor, beam: int) -> Tensor:
    """`left` is what each way leaves of its vector, [N, ways, d]."""
    size = books.shape[1]
    left = vectors[:, None]
    tokens = torch.zeros(len(vectors), 1, 0, dtype=torch.int64, device=vectors.device)
    for book in books:
        after = left.square().sum(-1, keepdim=True) - 2 * left @ book.T + book.square().sum(-1)
        best = after.flatten(1).topk(min(beam, after[0].numel()), largest=False).indices
        way, code = best // size, best % size
        tokens = torch.cat([_pick_ways(tokens, way), code[..., None]], dim=2)
        left = _pick_ways(left, way) - book[code]
    return tokens[:, 0]  # topk sorts: the first way is the best


def _pick_ways(x: Tensor, way: Tensor) -> Tensor:
    """[N, ways, D], [N, kept] → [N, kept, D]."""
    return x.gather(1, way[..., None].expand(-1, -1, x.shape[-1]))


def first_stages(state: Mapping[str, Tensor], rows: int) -> dict[str, Tensor]:
    """A codec's weights with only the first `rows` stages of its residual quantizer.

    The stages it loses only ever refined what the first had coded, so the others stay valid.
    """

    def stage(name: str) -> int:
        found = re.match(r"quantizer\.stages\.(\d+)\.", name)
        return int(found[1]) if found else 0

    return {name: tensor for name, tensor in state.items() if stage(name) < rows}


def build_quantizer(config: QuantizerConfig, rows: int) -> Quantizer:
    """The quantizer of the config's layout; `rows` is the grid's F'."""
    kind = ResidualQuantizer if config.layout == "residual" else ParallelQuantizer
    return kind(config, rows)


@dataclass(frozen=True)
class CodebookHealth:
    """How evenly each row uses its codes; a perplexity near 1 is a collapsed codebook.

    perplexity: [F'], exp of the entropy of the row's token frequencies, between 1 and K.
    used: [F'], share of the K codes that occur at all.
    """

    perplexity: Tensor
    used: Tensor


def codebook_health(tokens: Tensor, codebook_size: int) -> CodebookHealth:
    """Usage statistics of tokens [B, F', L']."""
    rows = tokens.shape[1]
    flat = tokens.transpose(0, 1).reshape(rows, -1)
    counts = torch.zeros(rows, codebook_size, device=tokens.device)
    counts.scatter_add_(1, flat, torch.ones_like(flat, dtype=counts.dtype))
    shares = counts / flat.shape[1]
    return CodebookHealth(
        perplexity=torch.special.entr(shares).sum(1).exp(),
        used=(counts > 0).float().mean(1),
    )


def _straight_through(latent: Tensor, codes: Tensor) -> Tensor:
    """The value of the codes with the gradient of the latent."""
    return latent + (codes - latent).detach()
