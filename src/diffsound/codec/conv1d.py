"""A codec backbone for CPUs: ConvNeXt blocks over time, the mel bands as channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffsound.codec.config import Conv1dConfig, LinearConfig, TextureConfig
from diffsound.codec.seams import Seams


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


class Conv1dEncoder(nn.Module):
    """mel [B, n_mels, L] in [-1, 1] → latent [B, C, 1, L / stride]."""

    def __init__(self, config: Conv1dConfig, n_mels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv1d(n_mels, config.widths[0], config.kernel, padding=config.kernel // 2)
        ]
        for index, width in enumerate(config.widths):
            if index > 0:
                stride = config.strides[index - 1]
                layers += [
                    ChannelNorm(config.widths[index - 1]),
                    nn.Conv1d(config.widths[index - 1], width, stride, stride=stride),
                ]
            layers += _blocks(config, index)
        layers += [ChannelNorm(config.widths[-1]), nn.Conv1d(config.widths[-1], config.latent, 1)]
        self.layers = nn.Sequential(*layers)

    def forward(self, mel: Tensor) -> Tensor:
        return self.layers(mel)[:, :, None]


class PatchEncoder(nn.Module):
    """mel [B, n_mels, L] in [-1, 1] → latent [B, C, 1, L / stride], one linear map per column."""

    def __init__(self, config: Conv1dConfig | LinearConfig, n_mels: int) -> None:
        super().__init__()
        stride = config.time_stride
        self.patches = nn.Conv1d(n_mels, config.latent, stride, stride=stride)

    def forward(self, mel: Tensor) -> Tensor:
        return self.patches(mel)[:, :, None]


class PatchDecoder(nn.Module):
    """latent [B, C, 1, L'] → mel [B, n_mels, L' · stride], one linear map per column."""

    def __init__(self, config: LinearConfig, n_mels: int) -> None:
        super().__init__()
        stride = config.time_stride
        self.patches = nn.ConvTranspose1d(config.latent, n_mels, stride, stride=stride)

    @property
    def last_layer(self) -> Tensor:
        """The weight at which VQGAN balances the adversarial gradient."""
        return self.patches.weight

    def forward(self, latent: Tensor) -> Tensor:
        return self.patches(latent[:, :, 0])


class Conv1dDecoder(nn.Module):
    """latent [B, C, 1, L'] → mel [B, n_mels, L' · stride] in about [-1, 1]."""

    def __init__(self, config: Conv1dConfig, n_mels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv1d(config.latent, config.widths[-1], config.kernel, padding=config.kernel // 2)
        ]
        for index in reversed(range(len(config.widths))):
            layers += _blocks(config, index)
            if index > 0:
                stride = config.strides[index - 1]
                layers += [
                    ChannelNorm(config.widths[index]),
                    nn.ConvTranspose1d(
                        config.widths[index], config.widths[index - 1], stride, stride=stride
                    ),
                ]
        layers += [ChannelNorm(config.widths[0])]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Conv1d(config.widths[0], n_mels, 1)
        self.patches: nn.ConvTranspose1d | None = None
        if config.linear:
            stride = config.time_stride
            self.patches = nn.ConvTranspose1d(config.latent, n_mels, stride, stride=stride)
            _silence(self.head)
        self.texture: Texture | None = None
        if config.texture is not None:
            self.texture = Texture(config.texture, config.widths[0], n_mels)
        self.seams: Seams | None = None
        if config.seams is not None:
            self.seams = Seams(config.seams, config.time_stride, n_mels)

    @property
    def last_layer(self) -> Tensor:
        """The weight at which VQGAN balances the adversarial gradient."""
        return self.head.weight if self.texture is None else self.texture.last.weight

    def linear(self, latent: Tensor) -> Tensor:
        """What one linear map per column makes of the latent; for a config with `linear`."""
        assert self.patches is not None
        return self.patches(latent[:, :, 0])

    def forward(self, latent: Tensor) -> Tensor:
        hidden = self.layers(latent[:, :, 0])
        mel: Tensor = self.head(hidden)
        if self.patches is not None:
            mel = mel + self.linear(latent)
        if self.texture is not None:
            mel = mel + self.texture(mel, hidden)
        return mel if self.seams is None else self.seams(mel)


class Texture(nn.Module):
    """mel [B, n_mels, L] and the decoder's last hidden layer [B, C, L] → what to add to the mel.

    The grain of a noise cannot be coded, and need not be: it is drawn again from noise. While it
    learns the noise is fresh, later always the same, so that tokens have one mel.
    """

    noise: Tensor  # [n_mels, PERIOD]
    PERIOD = 1024  # frames, 12 s; afterwards the noise begins again

    def __init__(self, config: TextureConfig, hidden: int, n_mels: int) -> None:
        super().__init__()
        self.controls = nn.Conv1d(hidden, config.controls * n_mels, 1)
        self.first = nn.Conv2d(2 + config.controls, config.width, 3, padding=1)
        self.middle = nn.ModuleList(
            nn.Conv2d(config.width, config.width, 3, padding=1) for _ in range(config.layers)
        )
        self.last = nn.Conv2d(config.width, 1, 3, padding=1)
        _silence(self.last)  # adds nothing to a codec that begins without it
        self.grain: nn.Conv1d | None = None
        if config.grain:
            self.grain = nn.Conv1d(hidden, n_mels, 1)
            _silence(self.grain)
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(n_mels, self.PERIOD, generator=generator, device="cpu")
        self.register_buffer("noise", drawn, persistent=False)

    def forward(self, mel: Tensor, hidden: Tensor) -> Tensor:
        controls = self.controls(hidden).unflatten(1, (-1, mel.shape[1]))
        noise = torch.randn_like(mel) if self.training else self._always_the_same(mel)
        maps = torch.cat([mel[:, None], noise[:, None], controls], dim=1)
        x = F.gelu(self.first(maps.contiguous(memory_format=torch.channels_last)))
        for layer in self.middle:
            x = x + F.gelu(layer(x))
        added: Tensor = self.last(x)[:, 0]
        return added if self.grain is None else added + self.grain(hidden) * noise

    def _always_the_same(self, mel: Tensor) -> Tensor:
        places = torch.arange(mel.shape[2], device=mel.device) % self.PERIOD
        return self.noise[:, places].to(mel.dtype).expand_as(mel)


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of [B, C, L]."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


def _silence(layer: nn.Module) -> None:
    """Make a layer begin by giving zeros."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)


def _blocks(config: Conv1dConfig, level: int) -> list[nn.Module]:
    width = config.widths[level]
    return [
        ConvNeXtBlock(width, config.kernel, config.expansion) for _ in range(config.depths[level])
    ]
