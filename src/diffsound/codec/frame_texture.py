"""The texture that tokens cannot hold, drawn frame by frame from a learned distribution.

Tokens say what a mel is on average. The rest (the grain of rain, the flutter of a flame, which of
two neighbouring bands holds a tone) is random, and a decoder trained on distances replaces it by
its mean: a smooth mel, which no listener takes for the real sound. This network is trained by
maximum likelihood instead. Given the average mel and the frames before, a frame's deviation from
the average is a mixture of Gaussians, each with a covariance of low rank plus a diagonal, so that
bands may flicker together:

    p(e_t | mean, e_<t) = Σ_m π_m N(e_t; μ_m, U_m U_mᵀ + diag(σ_m²))

Sampling is one pass over the frames. Nothing adversarial, no listener, no tuning of weights.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, LowRankMultivariateNormal, MixtureSameFamily
from torch.nn import functional as F

from diffsound.codec.config import FrameTextureConfig
from diffsound.codec.conv1d import ConvNeXtBlock

# Deviations are counted in steps of 3 dB (of the mel's 100 dB), about their spread.
UNIT = 0.03
_FARTHEST = 12.0  # units: no frame of a recording strays so far from its average
# The floor of a mel is a single value, on which a density would grow without bound.
_DITHER = 0.002


class TextureNoise(NamedTuple):
    """What frames are drawn from.

    own [..., n_mels], shared [..., rank]: standard normal. gumbel [..., mixtures]: the largest of
    logits plus gumbel is a draw from their softmax.
    """

    own: Tensor
    shared: Tensor
    gumbel: Tensor


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
        self.norm = nn.LayerNorm(width)
        self.frames = nn.Linear(width, config.patch * hidden)
        self.near = nn.Linear(2 * n_mels, hidden)
        self.past = nn.Linear(config.past * n_mels, hidden)
        self.first = nn.Linear(hidden, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.weights = nn.Linear(hidden, config.mixtures)
        numbers = n_mels * (2 + config.rank)  # μ, log σ and U of one Gaussian
        self.gaussians = nn.Parameter(torch.empty(config.mixtures, hidden, numbers))
        self.bias = nn.Parameter(torch.zeros(config.mixtures, numbers))
        self._start()

    def _start(self) -> None:
        """Begin near Gaussians of several spreads, with small joint movements of the bands."""
        nn.init.zeros_(self.rate.weight)
        nn.init.normal_(self.gaussians, std=0.01)
        bands = self.n_mels
        with torch.no_grad():
            for index, bias in enumerate(self.bias):
                bias[bands : 2 * bands] = -0.5 + 0.6 * index
                bias[2 * bands :].normal_(std=0.1)

    def log_prob(
        self,
        mel: Tensor,
        mean: Tensor,
        rows: Tensor,
        generator: torch.Generator | None = None,
        forget: float = 0.0,
    ) -> Tensor:
        """Log density of mel [B, n_mels, L] given its mean mel, in nats per cell: [B, L].

        rows: int64 [B], how many rows of tokens each mean comes from. forget: standard deviation of
        noise on the frames before, in units; what is drawn is never quite what was recorded.
        """
        dither = torch.randn(mel.shape, generator=generator).to(mel)
        deviation = (mel + _DITHER * dither - mean).transpose(1, 2) / UNIT  # [B, L, n_mels]
        length = deviation.shape[1]
        before = F.pad(deviation, (0, 0, self.config.past, 0))[:, :-1]
        if forget:
            before = before + forget * torch.randn(before.shape, generator=generator).to(mel)
        # [B, L, n_mels, past] → [B, L, past · n_mels], the oldest frame first
        before = before.unfold(1, self.config.past, 1).transpose(2, 3).flatten(2)[:, :length]
        hidden = self._hidden(self.context(mean, rows), before)
        with torch.autocast(mel.device.type, enabled=False):
            numbers = torch.einsum("blh,mhn->blmn", hidden.float(), self.gaussians) + self.bias
            mean_, spread, factor = self._split(numbers)
            gaussians = LowRankMultivariateNormal(
                mean_, factor, (2 * spread).exp(), validate_args=False
            )
            choice = Categorical(logits=self.weights(hidden.float()), validate_args=False)
            density = MixtureSameFamily(choice, gaussians, validate_args=False)
            return density.log_prob(deviation.float()) / self.n_mels

    @torch.no_grad()
    def draw(self, mean: Tensor, rows: int, generator: torch.Generator | None = None) -> Tensor:
        """A mel [B, n_mels, L] for each mean mel, not clipped; the noise is drawn on the CPU."""
        batch, _, length = mean.shape
        past, device = self.config.past, mean.device
        context = self.context(mean, torch.full((batch,), rows, device=device)).float()
        noises = [self.noise(length, generator) for _ in range(batch)]
        own, shared, gumbel = (
            torch.stack(parts, dim=1).to(device) for parts in zip(*noises, strict=True)
        )
        drawn = context.new_zeros(batch, past + length, self.n_mels)
        for t in range(length):
            before = drawn[:, t : t + past].flatten(1)
            noise = TextureNoise(own[t], shared[t], gumbel[t])
            drawn[:, t + past] = self.next_frame(context[:, t], before, noise)
        return mean + UNIT * drawn[:, past:].transpose(1, 2)

    def noise(self, length: int, generator: torch.Generator | None = None) -> TextureNoise:
        """What `length` frames of one item are drawn from, on the CPU."""
        own = torch.randn(length, self.n_mels, generator=generator)
        shared = torch.randn(length, self.config.rank, generator=generator)
        uniform = torch.rand(length, self.config.mixtures, generator=generator)
        return TextureNoise(own, shared, -torch.log(-torch.log(uniform.clamp_min(1e-20))))

    def next_frame(self, context: Tensor, before: Tensor, noise: TextureNoise) -> Tensor:
        """The deviation [B, n_mels] given the context [B, hidden] and the frames before it,
        [B, past · n_mels]."""
        hidden = self._hidden(context, before)
        which = (self.weights(hidden) + noise.gumbel).argmax(-1)
        chosen = torch.bmm(hidden[:, None], self.gaussians[which])[:, 0] + self.bias[which]
        mean, spread, factor = self._split(chosen)
        joint = torch.bmm(factor, noise.shared[..., None])[..., 0]
        return (mean + joint + spread.exp() * noise.own).clamp(-_FARTHEST, _FARTHEST)

    def context(self, mean: Tensor, rows: Tensor) -> Tensor:
        """What the mean mel [B, n_mels, L] says of each frame: [B, L, hidden]."""
        length = mean.shape[2]
        centred = 4 * (mean - 0.45)  # mean and spread of mels where there is sound
        x = self.patches(F.pad(centred, (0, -length % self.config.patch), mode="replicate"))
        x = x + self.rate(rows)[:, :, None]
        for block in self.blocks:
            x = block(x)
        frames = self.frames(self.norm(x.transpose(1, 2)))  # [B, L / patch, patch · hidden]
        frames = frames.unflatten(2, (self.config.patch, -1)).flatten(1, 2)[:, :length]
        change = F.pad(mean.diff(dim=2), (1, 0))
        return frames + self.near(torch.cat([centred, 10 * change], dim=1).transpose(1, 2))

    def _hidden(self, context: Tensor, before: Tensor) -> Tensor:
        """[…, hidden] of the context and the frames before, [..., past · n_mels]."""
        hidden = F.gelu(context + self.past(before))
        hidden = hidden + F.gelu(self.first(hidden))
        return F.gelu(self.second(hidden))

    def _split(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[…, n_mels · (2 + rank)] → μ […, n_mels], log σ […, n_mels] and U […, n_mels, rank]."""
        bands = self.n_mels
        mean, spread, factor = numbers.split([bands, bands, bands * self.config.rank], dim=-1)
        return mean, spread.clamp(-4, 3), factor.unflatten(-1, (bands, -1))
