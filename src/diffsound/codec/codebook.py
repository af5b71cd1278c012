"""Codebooks: the nearest code, and codes that follow the latents they stand for."""

from __future__ import annotations

import torch
from torch import Tensor, distributed, nn

from diffsound.codec.config import QuantizerConfig

# Distances computed at once (64 MB in float32), so that coding hours of sound stays small.
_BLOCK = 1 << 24


def nearest(vectors: Tensor, codes: Tensor) -> Tensor:
    """Index of the code nearest by L2 (eq. 1): [G, N, d], [G, K, d] → int64 [G, N].

    ‖z − e‖² = ‖z‖² − 2 z·e + ‖e‖², and ‖z‖² does not change which is least.
    """
    half_squares = codes.square().sum(-1)[:, None] / 2  # [G, 1, K]
    block = max(1, _BLOCK // (codes.shape[0] * codes.shape[1]))
    return torch.cat(
        [
            torch.baddbmm(half_squares, part, codes.transpose(1, 2), alpha=-1).argmin(-1)
            for part in vectors.split(block, dim=1)
        ],
        dim=1,
    )


class Codebooks(nn.Module):
    """G codebooks of K codes, each looking at its own vectors.

    With `update="ema"` the codes are buffers: `count` and `total` are running means of how many
    vectors chose a code and of their sum, and the code is their ratio. They are saved with the
    weights, since an exact resume needs them. A new codebook has counts of zero, so all its codes
    are unused and the first training batch places them.
    """

    codes: Tensor
    count: Tensor
    total: Tensor
    restarts: Tensor

    def __init__(self, config: QuantizerConfig, groups: int) -> None:
        super().__init__()
        size, dim = config.codebook_size, config.code_dim
        self.ema = config.update == "ema"
        self.decay = config.decay
        self.restart_threshold = config.restart_threshold
        codes = torch.empty(groups, size, dim).uniform_(-1 / size, 1 / size)
        if self.ema:
            self.register_buffer("codes", codes)
            self.register_buffer("count", torch.zeros(groups, size))
            self.register_buffer("total", torch.zeros(groups, size, dim))
            self.register_buffer("restarts", torch.zeros((), dtype=torch.int64))
        else:
            self.codes = nn.Parameter(codes)

    @property
    def restart_count(self) -> int:
        """Codes moved because nobody used them, since training began."""
        return int(self.restarts) if self.ema else 0

    def forward(
        self, vectors: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """[G, N, d] → indices [G, N] and their codes [G, N, d]; in training the codes follow."""
        vectors = vectors.detach()
        follow = self.ema and self.training
        if follow:
            self._restart(vectors, generator)
        with torch.no_grad():
            indices = self.nearest(vectors)
        chosen = self.lookup(indices)
        if follow:
            self._follow(vectors, indices)
        return indices, chosen

    def nearest(self, vectors: Tensor) -> Tensor:
        """The indices of the nearest codes: [G, N, d] → [G, N]."""
        return nearest(vectors, self.codes)

    def lookup(self, indices: Tensor) -> Tensor:
        """The codes at indices [G, N] → [G, N, d]."""
        group = torch.arange(self.codes.shape[0], device=indices.device)[:, None]
        return self.codes[group, indices]

    @torch.no_grad()
    def fit(self, vectors: Tensor, rounds: int, generator: torch.Generator) -> None:
        """Place the codes by k-means (Lloyd's rounds) over vectors [G, N, d], N ≥ K.

        Their running means become those of these vectors, so that training continues from there.
        """
        groups, size, _ = self.codes.shape
        places = torch.rand(groups, vectors.shape[1], generator=generator).argsort(dim=1)
        rows = torch.arange(groups)[:, None]
        self.codes.copy_(vectors[rows, places[:, :size]])
        for _ in range(rounds):
            count, total = self._sums(vectors, self.nearest(vectors))
            mean = total / count.clamp_min(1)[..., None]
            # A code nobody chose begins again elsewhere.
            fresh = torch.randint(vectors.shape[1], (groups, size), generator=generator)
            self.codes.copy_(torch.where(count[..., None] > 0, mean, vectors[rows, fresh]))
        if self.ema:
            count = self._sums(vectors, self.nearest(vectors))[0]
            self.count.copy_(count * (size / vectors.shape[1]))  # 1 on average
            self.total.copy_(self.codes * self.count[..., None])

    def _sums(self, vectors: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        """How many vectors [G, N, d] chose each code, [G, K], and their sum [G, K, d]."""
        count = torch.zeros_like(self.codes[..., 0]).scatter_add_(
            1, indices, torch.ones_like(indices, dtype=self.codes.dtype)
        )
        total = torch.zeros_like(self.codes).scatter_add_(
            1, indices[..., None].expand_as(vectors), vectors.to(self.codes.dtype)
        )
        return count, total

    @torch.no_grad()
    def _follow(self, vectors: Tensor, indices: Tensor) -> None:
        """Move the running means towards this batch and the codes to their ratio."""
        count, total = self._sums(vectors, indices)
        _sum_over_processes(count)
        _sum_over_processes(total)
        # A broken batch is skipped by the training loop; it must not live on in the codes.
        if not bool(total.isfinite().all()):
            return
        self.count.lerp_(count, 1 - self.decay)
        self.total.lerp_(total, 1 - self.decay)
        # A code that was never chosen has no mean; it stays where it is.
        chosen = self.count > 1e-12
        mean = self.total / self.count.clamp_min(1e-12)[..., None]
        self.codes.copy_(torch.where(chosen[..., None], mean, self.codes))

    @torch.no_grad()
    def _restart(self, vectors: Tensor, generator: torch.Generator | None) -> None:
        """Put unused codes onto random vectors of this batch, with the usage of an average code."""
        sizes = _gather_sizes(vectors.shape[1], vectors.device)
        share = sum(sizes) / self.codes.shape[1]
        unused = self.count < self.restart_threshold * share
        if not bool(unused.any()):
            return
        group, code = unused.nonzero(as_tuple=True)
        fresh = _pick(vectors, group, sizes, generator).to(self.codes.dtype)
        if not bool(fresh.isfinite().all()):
            return
        self.codes[group, code] = fresh
        self.count[group, code] = share
        self.total[group, code] = fresh * share
        self.restarts += len(code)


def _pick(
    vectors: Tensor, group: Tensor, sizes: list[int], generator: torch.Generator | None
) -> Tensor:
    """One random vector of each listed group, [n, d], drawn from the batches of all processes.

    The first process draws places in the joined batch; each process fills in those it holds. So
    the result is that of one process with the whole batch.
    """
    joined = sum(sizes)
    order = torch.rand(vectors.shape[0], joined, generator=generator).argsort(dim=1)
    # The i-th request of a group takes the i-th of its shuffled places (again from the start if
    # there are more requests than vectors), so that codes start apart.
    requests = torch.arange(len(group)) - torch.searchsorted(group.cpu(), group.cpu())
    places = order[group.cpu(), requests % joined].to(vectors.device)
    if _processes() == 1:
        return vectors[group, places]
    distributed.broadcast(places, src=0)
    rank = distributed.get_rank()
    local = places - sum(sizes[:rank])
    mine = (local >= 0) & (local < sizes[rank])
    picked = vectors.new_zeros(len(group), vectors.shape[-1])
    picked[mine] = vectors[group[mine], local[mine]]
    _sum_over_processes(picked)
    return picked


def _gather_sizes(size: int, device: torch.device) -> list[int]:
    """How many vectors each process has."""
    if _processes() == 1:
        return [size]
    sizes = torch.zeros(_processes(), dtype=torch.int64, device=device)
    sizes[distributed.get_rank()] = size
    _sum_over_processes(sizes)
    return [int(value) for value in sizes]


def _sum_over_processes(tensor: Tensor) -> None:
    if _processes() > 1:
        distributed.all_reduce(tensor)


def _processes() -> int:
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return 1
