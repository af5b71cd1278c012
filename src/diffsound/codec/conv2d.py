"""The VQGAN encoder and decoder: residual blocks, strided convolutions, attention when small.

Module names follow the published checkpoints, so that their keys are ours.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from diffsound.codec.config import Conv2dConfig, Stride


class ResidualBlock(nn.Module):
    """[B, C, H, W] → [B, C', H, W]: two normalised 3×3 convolutions beside a shortcut."""

    def __init__(self, channels: int, out_channels: int, groups: int) -> None:
        super().__init__()
        self.norm1 = _norm(channels, groups)
        self.conv1 = nn.Conv2d(channels, out_channels, 3, padding=1)
        self.norm2 = _norm(out_channels, groups)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        if channels != out_channels:
            self.nin_shortcut = nn.Conv2d(channels, out_channels, 1)
        self.changes_width = channels != out_channels

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return h + (self.nin_shortcut(x) if self.changes_width else x)


class AttentionBlock(nn.Module):
    """[B, C, H, W] → the same: one head over all positions."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.norm = _norm(channels, groups)
        self.q = nn.Conv2d(channels, channels, 1)
        self.k = nn.Conv2d(channels, channels, 1)
        self.v = nn.Conv2d(channels, channels, 1)
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        q, k, v = (
            layer(normed).flatten(2).transpose(1, 2)[:, None] for layer in (self.q, self.k, self.v)
        )
        attended = F.scaled_dot_product_attention(q, k, v)  # [B, 1, H·W, C], scale C^-0.5
        return x + self.proj_out(attended[:, 0].transpose(1, 2).reshape(x.shape))


class Downsample(nn.Module):
    """A strided convolution; H and W must be multiples of the stride.

    An axis of stride s > 1 has a kernel of s + 1 and one zero at its far end (for s = 2 that is
    the published 3×3 with asymmetric padding); an axis of stride 1 an ordinary kernel of 3.
    """

    def __init__(self, channels: int, stride: Stride) -> None:
        super().__init__()
        kernel = (_kernel(stride[0]), _kernel(stride[1]))
        self.conv = nn.Conv2d(channels, channels, kernel, stride=stride)
        height, width = ((1, 1) if step == 1 else (0, 1) for step in stride)
        self.padding = (*width, *height)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, self.padding))


class Upsample(nn.Module):
    """Repeat every cell by the stride, then smooth with a 3×3 convolution."""

    def __init__(self, channels: int, stride: Stride) -> None:
        super().__init__()
        self.scale = (float(stride[0]), float(stride[1]))
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=self.scale, mode="nearest"))


class Level(nn.Module):
    """Residual blocks at one resolution, each followed by attention where the level has it."""

    def __init__(
        self, channels: int, out_channels: int, blocks: int, attention: bool, groups: int
    ) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            ResidualBlock(channels if index == 0 else out_channels, out_channels, groups)
            for index in range(blocks)
        )
        self.attn = nn.ModuleList(
            AttentionBlock(out_channels, groups) for _ in range(blocks if attention else 0)
        )

    def forward(self, x: Tensor) -> Tensor:
        for index, block in enumerate(self.block):
            x = block(x)
            if self.attn:
                x = self.attn[index](x)
        return x


class EncoderLevel(Level):
    """A level and the way down to the next."""

    def __init__(
        self,
        channels: int,
        out_channels: int,
        blocks: int,
        attention: bool,
        groups: int,
        stride: Stride,
    ) -> None:
        super().__init__(channels, out_channels, blocks, attention, groups)
        self.downsample = nn.Identity() if stride == (1, 1) else Downsample(out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.downsample(super().forward(x))


class DecoderLevel(Level):
    """A level and the way up to the next."""

    def __init__(
        self,
        channels: int,
        out_channels: int,
        blocks: int,
        attention: bool,
        groups: int,
        stride: Stride,
    ) -> None:
        super().__init__(channels, out_channels, blocks, attention, groups)
        self.upsample = nn.Identity() if stride == (1, 1) else Upsample(out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.upsample(super().forward(x))


class Middle(nn.Module):
    """Block, attention, block at the lowest resolution."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.block_1 = ResidualBlock(channels, channels, groups)
        self.attn_1 = AttentionBlock(channels, groups)
        self.block_2 = ResidualBlock(channels, channels, groups)

    def forward(self, x: Tensor) -> Tensor:
        return self.block_2(self.attn_1(self.block_1(x)))


class Conv2dEncoder(nn.Module):
    """mel [B, n_mels, L] in [-1, 1] → latent [B, C, n_mels / sF, L / sL]."""

    def __init__(self, config: Conv2dConfig) -> None:
        super().__init__()
        groups, widths = config.norm_groups, config.widths
        self.conv_in = nn.Conv2d(1, config.width, 3, padding=1)
        self.down = nn.ModuleList(
            EncoderLevel(
                widths[level - 1] if level > 0 else config.width,
                width,
                config.encoder_blocks,
                level in config.attention_levels,
                groups,
                config.strides[level] if level < len(config.strides) else (1, 1),
            )
            for level, width in enumerate(widths)
        )
        self.mid = Middle(widths[-1], groups)
        self.norm_out = _norm(widths[-1], groups)
        self.conv_out = nn.Conv2d(widths[-1], config.latent, 3, padding=1)

    def forward(self, mel: Tensor) -> Tensor:
        x = self.conv_in(mel[:, None])
        for level in self.down:
            x = level(x)
        return self.conv_out(F.silu(self.norm_out(self.mid(x))))


class Conv2dDecoder(nn.Module):
    """latent [B, C, F', L'] → mel [B, n_mels, L] in about [-1, 1]; no activation at the end."""

    def __init__(self, config: Conv2dConfig) -> None:
        super().__init__()
        groups, widths = config.norm_groups, config.widths
        self.conv_in = nn.Conv2d(config.latent, widths[-1], 3, padding=1)
        self.mid = Middle(widths[-1], groups)
        # up[0] has the full resolution and runs last.
        self.up = nn.ModuleList(
            DecoderLevel(
                widths[min(level + 1, len(widths) - 1)],
                width,
                config.decoder_blocks,
                level in config.attention_levels,
                groups,
                config.strides[level - 1] if level > 0 else (1, 1),
            )
            for level, width in enumerate(widths)
        )
        self.norm_out = _norm(widths[0], groups)
        self.conv_out = nn.Conv2d(widths[0], 1, 3, padding=1)

    @property
    def last_layer(self) -> Tensor:
        """The weight at which VQGAN balances the adversarial gradient."""
        return self.conv_out.weight

    def forward(self, latent: Tensor) -> Tensor:
        x = self.mid(self.conv_in(latent))
        for level in reversed(list(self.up)):
            x = level(x)
        return self.conv_out(F.silu(self.norm_out(x)))[:, 0]


def _norm(channels: int, groups: int) -> nn.GroupNorm:
    return nn.GroupNorm(groups, channels, eps=1e-6)


def _kernel(stride: int) -> int:
    return 3 if stride == 1 else stride + 1
