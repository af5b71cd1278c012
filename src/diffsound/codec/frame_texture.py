"""The texture that tokens cannot hold, drawn frame by frame from a learned distribution.

Tokens say what a mel is on average. The rest (the grain of rain, the flutter of a flame, which of
two neighbouring bands holds a tone) is random, and a decoder trained on distances replaces it by
its mean: a smooth mel, which no listener takes for the real sound. This network is trained by
maximum likelihood instead. Given the average mel and the frames before, a frame's deviation from
the average is a mixture of Gaussians, each with a covariance of low rank plus a diagonal, so that
bands may flicker together:

    p(e_t | mean, e_<t) = Σ_m π_m N(e_t; μ_m, U_m U_mᵀ + diag(σ_m²))

A network with `text_dim` is told the text as well, and exaggerates what the text changes when it
draws (`guidance`). With `memory` a frame also depends on how its sound went before the last few
frames, and with `skewed` each band of a Gaussian is bent so that it strays farther one way.

Sampling is one pass over the frames. Nothing adversarial, no listener, no tuning of weights.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, LowRankMultivariateNormal
from torch.nn import functional as F

from diffsound.codec.config import FrameTextureConfig

# Deviations are counted in steps of 3 dB (of the mel's 100 dB), about their spread.
UNIT = 0.03
_FARTHEST = 12.0  # units: no frame of a recording strays so far from its average
# The floor of a mel is a single value, on which a density would grow without bound.
_DITHER = 0.002
_LEAST_SHARE = 1e-3  # before the first frame there is nothing to take a mean of
_MOST_SKEWED = 0.9  # 1 would fold the deviations over


class TextureNoise(NamedTuple):
    """What frames are drawn from.

    own [..., n_mels], shared [..., rank]: standard normal. gumbel [..., mixtures]: the largest of
    logits plus gumbel is a draw from their softmax.
    """

    own: Tensor
    shared: Tensor
    gumbel: Tensor


class ConvNeXtBlock(nn.Module):
    """[B, C, L] → the same: depthwise convolution, then a two-layer network at every frame."""

    def __init__(self, channels: int, kernel: int, expansion: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(channels, channels, kernel, padding=kernel // 2, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.expand = nn.Linear(channels, channels * expansion)
        self.contract = nn.Linear(channels * expansion, channels)
        # A small start keeps a deep stack near the identity, where it trains well.
        self.scale = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.depthwise(x).transpose(1, 2))
        h = self.contract(F.gelu(self.expand(h)))
        return x + (h * self.scale).transpose(1, 2)


class FrameTexture(nn.Module):
    """mean mel [B, n_mels, L] → the distribution of the mel, frame by frame."""

    def __init__(self, config: FrameTextureConfig, n_mels: int, rows: int) -> None:
        """rows: of the token grid; a mean mel may come from fewer."""
        super().__init__()
        self.config = config
        self.n_mels = n_mels
        width, hidden = config.width, config.hidden
        self.patches = nn.Conv1d(n_mels, width, config.patch, stride=config.patch)
        self.rate = nn.Embedding(rows + 1, width)
        self.blocks = nn.ModuleList(
            ConvNeXtBlock(width, config.kernel, config.expansion) for _ in range(config.layers)
        )
        self.text: nn.Linear | None = None
        if config.text_dim is not None:
            self.text = nn.Linear(config.text_dim, config.layers * width, bias=False)
        self.norm = nn.LayerNorm(width)
        self.frames = nn.Linear(width, config.patch * hidden)
        self.near = nn.Linear(2 * n_mels, hidden)
        self.past = nn.Linear(config.past * n_mels, hidden)
        self.memory: nn.Linear | None = None
        if config.memory:
            self.memory = nn.Linear(len(config.memory) * (2 * n_mels + 1), hidden, bias=False)
        self.first = nn.Linear(hidden, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.weights = nn.Linear(hidden, config.mixtures)
        # μ, log σ, U and perhaps the skew of one Gaussian
        numbers = n_mels * (2 + config.rank + config.skewed)
        self.gaussians = nn.Parameter(torch.empty(config.mixtures, hidden, numbers))
        self.bias = nn.Parameter(torch.zeros(config.mixtures, numbers))
        self._start()

    def _start(self) -> None:
        """Begin near Gaussians of several spreads, with small joint movements of the bands."""
        nn.init.zeros_(self.rate.weight)
        if self.text is not None:
            nn.init.zeros_(self.text.weight)
        if self.memory is not None:
            nn.init.zeros_(self.memory.weight)
        nn.init.normal_(self.gaussians, std=0.01)
        bands, joint = self.n_mels, self.n_mels * (2 + self.config.rank)
        with torch.no_grad():
            for index, bias in enumerate(self.bias):
                bias[bands : 2 * bands] = -0.5 + 0.6 * index
                bias[2 * bands : joint].normal_(std=0.1)

    def log_prob(
        self,
        mel: Tensor,
        mean: Tensor,
        rows: Tensor,
        generator: torch.Generator | None = None,
        forget: float = 0.0,
        text: Tensor | None = None,
    ) -> Tensor:
        """Log density of mel [B, n_mels, L] given its mean mel, in nats per cell: [B, L].

        rows: int64 [B], how many rows of tokens each mean comes from. text: [B, text_dim], zeros
        for none. forget: standard deviation of
        noise on the frames before, in units; what is drawn is never quite what was recorded.
        """
        dither = torch.randn(mel.shape, generator=generator).to(mel)
        deviation = (mel + _DITHER * dither - mean).transpose(1, 2) / UNIT  # [B, L, n_mels]
        seen = deviation
        if forget:
            seen = seen + forget * torch.randn(seen.shape, generator=generator).to(mel)
        hidden = self._hidden(self.context(mean, rows, text), self._states(seen))
        with torch.autocast(mel.device.type, enabled=False):
            numbers = torch.einsum("blh,mhn->blmn", hidden.float(), self.gaussians) + self.bias
            center, spread, factor, skew = self._split(numbers)
            choice = Categorical(logits=self.weights(hidden.float()), validate_args=False)
            straight, slope = _straighten(deviation.float()[:, :, None] - center, skew)
            gaussians = LowRankMultivariateNormal(
                torch.zeros_like(center), factor, (2 * spread).exp(), validate_args=False
            )
            each = gaussians.log_prob(straight) + slope.log().sum(-1)  # [B, L, mixtures]
            return (choice.logits + each).logsumexp(-1) / self.n_mels

    @torch.no_grad()
    def draw(
        self,
        mean: Tensor,
        rows: int,
        generator: torch.Generator | None = None,
        text: Tensor | None = None,
    ) -> Tensor:
        """A mel [B, n_mels, L] for each mean mel, not clipped; the noise is drawn on the CPU.

        text: [B, text_dim], what is to be heard; None if nobody said.
        """
        batch, _, length = mean.shape
        device = mean.device
        context = self.guided(mean, torch.full((batch,), rows, device=device), text).float()
        noises = [self.noise(length, generator) for _ in range(batch)]
        own, shared, gumbel = (
            torch.stack(parts, dim=1).to(device) for parts in zip(*noises, strict=True)
        )
        # As `next_frame` and `remember` in turn, without moving what stays where it is.
        past, spans = self.config.past, len(self.config.memory)
        drawn = context.new_zeros(batch, past + length, self.n_mels)
        sums = context.new_zeros(batch, spans, 2 * self.n_mels)
        keep = context.new_tensor(self._keep())[:, None]  # [spans, 1]
        share = 1 - keep ** torch.arange(length, device=device)[:, None, None]  # [L, spans, 1]
        inverse = 1 / share.clamp_min(_LEAST_SHARE)
        if self.memory is not None:
            # [hidden, spans, 2 · n_mels + 1]
            by_span = self.memory.weight.unflatten(1, (spans, -1))
            of_sums, of_share = by_span[..., :-1].flatten(1), by_span[..., -1]
            context = context + share[..., 0] @ of_share.T
        for t in range(length):
            hidden = context[:, t] + self.past(drawn[:, t : t + past].flatten(1))
            if self.memory is not None:
                hidden = hidden + F.linear((sums * inverse[t]).flatten(1), of_sums)
            noise = TextureNoise(own[t], shared[t], gumbel[t])
            frame = self._drawn(self._deepen(hidden), noise)
            drawn[:, t + past] = frame
            sums = torch.lerp(torch.cat([frame, frame.abs()], dim=1)[:, None], sums, keep)
        return mean + UNIT * drawn[:, past:].transpose(1, 2)

    def noise(self, length: int, generator: torch.Generator | None = None) -> TextureNoise:
        """What `length` frames of one item are drawn from, on the CPU."""
        own = torch.randn(length, self.n_mels, generator=generator)
        shared = torch.randn(length, self.config.rank, generator=generator)
        uniform = torch.rand(length, self.config.mixtures, generator=generator)
        return TextureNoise(own, shared, -torch.log(-torch.log(uniform.clamp_min(1e-20))))

    def next_frame(self, context: Tensor, state: Tensor, noise: TextureNoise) -> Tensor:
        """The deviation [B, n_mels] given the context [B, hidden] and the state [B, state_size] of
        the frames before it (zeros before the first)."""
        return self._drawn(self._hidden(context, state), noise)

    def _drawn(self, hidden: Tensor, noise: TextureNoise) -> Tensor:
        """A deviation [B, n_mels] from the distribution that hidden [B, hidden] stands for."""
        which = (self.weights(hidden) + noise.gumbel).argmax(-1)
        if len(hidden) == 1 and not torch.compiler.is_compiling():
            only = int(which)  # a view where indexing by a tensor copies half a megabyte
            chosen = torch.addmm(self.bias[only : only + 1], hidden, self.gaussians[only])
        else:
            chosen = torch.bmm(hidden[:, None], self.gaussians[which])[:, 0] + self.bias[which]
        center, spread, factor, skew = self._split(chosen)
        joint = torch.bmm(factor, noise.shared[..., None])[..., 0]
        bent = _bend(joint + spread.exp() * noise.own, skew)
        return (center + bent).clamp(-_FARTHEST, _FARTHEST)

    @property
    def state_size(self) -> int:
        """Numbers that stand for the frames before: the last ones, oldest first, then for each span
        of memory the decayed sums of deviations, of their sizes, and of ones."""
        return sum(self._parts())

    def remember(self, state: Tensor, frame: Tensor) -> Tensor:
        """The state [B, state_size] after one more frame [B, n_mels]."""
        recent, *memories = state.split(self._parts(), dim=1)
        added = torch.cat([frame, frame.abs(), torch.ones_like(frame[:, :1])], dim=1)
        sums = [
            keep * memory + (1 - keep) * added
            for keep, memory in zip(self._keep(), memories, strict=True)
        ]
        return torch.cat([recent[:, self.n_mels :], frame, *sums], dim=1)

    def _states(self, frames: Tensor) -> Tensor:
        """[B, L, n_mels] → the state before each frame, [B, L, state_size]; as `remember`, for all
        frames at once."""
        length, past = frames.shape[1], self.config.past
        before = F.pad(frames, (0, 0, past, 0))[:, :-1]
        parts = [before.unfold(1, past, 1).transpose(2, 3).flatten(2)]
        added = torch.cat([frames, frames.abs(), torch.ones_like(frames[..., :1])], dim=2)
        age = torch.arange(length)[:, None] - torch.arange(length) - 1.0  # of frame s at t
        for keep in self._keep():
            decay = torch.where(age >= 0, (1 - keep) * keep ** age.clamp_min(0), 0.0)
            parts.append(decay.to(frames) @ added)
        return torch.cat(parts, dim=2)

    def _keep(self) -> list[float]:
        """The share of each span's memory that a frame leaves."""
        return [1 - 1 / span for span in self.config.memory]

    def _parts(self) -> list[int]:
        """Lengths of a state's parts: the last frames, then each span's sums."""
        return [self.config.past * self.n_mels] + [2 * self.n_mels + 1] * len(self.config.memory)

    def guided(self, mean: Tensor, rows: Tensor, text: Tensor | None) -> Tensor:
        """As `context`, with what the text changes exaggerated."""
        scale = self.config.guidance
        if self.text is None or text is None or scale == 1.0:
            return self.context(mean, rows, text)
        return torch.lerp(self.context(mean, rows), self.context(mean, rows, text), scale)

    def context(self, mean: Tensor, rows: Tensor, text: Tensor | None = None) -> Tensor:
        """What the mean mel [B, n_mels, L] and the text say of each frame: [B, L, hidden]."""
        length = mean.shape[2]
        centred = 4 * (mean - 0.45)  # mean and spread of mels where there is sound
        x = self.patches(F.pad(centred, (0, -length % self.config.patch), mode="replicate"))
        x = x + self.rate(rows)[:, :, None]
        told = None
        if self.text is not None and text is not None:
            told = self.text(text)[..., None].chunk(len(self.blocks), dim=1)  # [B, width, 1] each
        for index, block in enumerate(self.blocks):
            x = block(x if told is None else x + told[index])
        frames = self.frames(self.norm(x.transpose(1, 2)))  # [B, L / patch, patch · hidden]
        frames = frames.unflatten(2, (self.config.patch, -1)).flatten(1, 2)[:, :length]
        change = F.pad(mean.diff(dim=2), (1, 0))
        return frames + self.near(torch.cat([centred, 10 * change], dim=1).transpose(1, 2))

    def _hidden(self, context: Tensor, state: Tensor) -> Tensor:
        """[…, hidden] of the context and the state of the frames before, [..., state_size]."""
        recent, *memories = state.split(self._parts(), dim=-1)
        hidden = context + self.past(recent)
        if self.memory is not None:
            known = []
            for sums in memories:
                share = sums[..., -1:]  # of the span that has passed
                known += [sums[..., :-1] / share.clamp_min(_LEAST_SHARE), share]
            hidden = hidden + self.memory(torch.cat(known, dim=-1))
        return self._deepen(hidden)

    def _deepen(self, hidden: Tensor) -> Tensor:
        # The exact GELU takes five times as long on a single vector.
        hidden = F.gelu(hidden, approximate="tanh")
        hidden = hidden + F.gelu(self.first(hidden), approximate="tanh")
        return F.gelu(self.second(hidden), approximate="tanh")

    def _split(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """[…, n_mels · (2 + rank [+ 1])] → μ, log σ […, n_mels], U […, n_mels, rank] and the skew
        in -1..1 […, n_mels]."""
        bands, rank = self.n_mels, self.config.rank
        mean, spread, factor = numbers[..., : (2 + rank) * bands].split(
            [bands, bands, rank * bands], dim=-1
        )
        skew = torch.zeros_like(mean)
        if self.config.skewed:
            skew = _MOST_SKEWED * numbers[..., -bands:].tanh()
        return mean, spread.clamp(-4, 3), factor.unflatten(-1, (bands, -1)), skew


def _bend(x: Tensor, skew: Tensor) -> Tensor:
    """y = x - skew · (√(x² + 1) - 1): steeper below zero than above for a positive skew."""
    return x - skew * ((x.square() + 1).sqrt() - 1)


def _straighten(y: Tensor, skew: Tensor) -> tuple[Tensor, Tensor]:
    """The inverse of `_bend`, x, and its slope dx/dy."""
    flat = 1 - skew.square()
    shifted = y - skew
    root = (shifted.square() + flat).sqrt()
    return (shifted + skew * root) / flat, (1 + skew * shifted / root) / flat
