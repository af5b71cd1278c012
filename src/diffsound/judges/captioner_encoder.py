"""The captioner's ear: mel to a sequence of vectors, by patches (the paper) or by convolutions."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from diffsound.config import MAX_LEVELS, Config, Count, Width
from diffsound.decoder.layers import FeedForward, SelfAttention


class AudioTransformerConfig(Config):
    """What both encoders end in.

    shift: in training, positions begin at a random place up to this one, so that sounds longer
        than the training windows meet no position that is new.
    """

    width: Width = 768
    layers: Count = 12
    heads: Count = 12
    shift: Annotated[int, Field(ge=0, le=65_536)] = 0


class PatchConfig(AudioTransformerConfig):
    """The published encoder: patches of `frames` frames by all mel bands, then ViT-Base's shape."""

    kind: Literal["patch"] = "patch"
    frames: Count = 4


class ConvConfig(AudioTransformerConfig):
    """Convolutions that halve bands and frames at every stage, then a short transformer.

    From a few thousand clips a patch transformer learns little: what convolutions know by build
    (a sound is the same sound earlier, later, or a little higher) it must see to believe.

    widths: channels of the stages. time_stages: how many of them halve the frames.
    """

    kind: Literal["conv"] = "conv"
    widths: Annotated[tuple[Width, ...], Field(min_length=1, max_length=MAX_LEVELS)] = (
        24,
        48,
        96,
        160,
    )
    time_stages: Count = 3
    width: Width = 192
    layers: Count = 2
    heads: Count = 4
    shift: Annotated[int, Field(ge=0, le=65_536)] = 64

    @model_validator(mode="after")
    def _stages(self) -> ConvConfig:
        if self.time_stages > len(self.widths):
            raise ValueError(f"time_stages is {self.time_stages} of {len(self.widths)} stages")
        return self


EncoderConfig = Annotated[PatchConfig | ConvConfig, Field(discriminator="kind")]


class EncoderBlock(nn.Module):
    """Pre-norm self-attention and feed-forward."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = FeedForward(width, 4, "gelu")
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """x [B, N, W]."""
        attended = self.attention(self.norm_attention(x))
        x = x + F.dropout(attended, self.dropout, self.training)
        return x + F.dropout(self.mlp(self.norm_mlp(x)), self.dropout, self.training)


class Patches(nn.Module):
    """mel [B, n_mels, L] to patches [B, ceil(L / frames), W], the last one filled with silence."""

    def __init__(self, config: PatchConfig, n_mels: int) -> None:
        super().__init__()
        self.frames = config.frames
        self.project = nn.Linear(n_mels * config.frames, config.width)

    def forward(self, mel: Tensor) -> Tensor:
        mel = F.pad(mel, (0, -mel.shape[-1] % self.frames))
        return self.project(mel.unflatten(-1, (-1, self.frames)).transpose(1, 2).flatten(2))


class ConvStage(nn.Module):
    """A strided convolution, and unless `plain` another one beside a shortcut."""

    def __init__(self, before: int, width: int, stride: tuple[int, int], plain: bool) -> None:
        super().__init__()
        self.down = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.norm_down = nn.BatchNorm2d(width)
        self.same = None if plain else nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm_same = None if plain else nn.BatchNorm2d(width)

    def forward(self, maps: Tensor) -> Tensor:
        maps = F.relu(self.norm_down(self.down(maps)))
        if self.same is None or self.norm_same is None:
            return maps
        return F.relu(maps + self.norm_same(self.same(maps)))


class Convolutions(nn.Module):
    """mel [B, n_mels, L] to vectors [B, ceil(L / 2**time_stages), W]."""

    def __init__(self, config: ConvConfig, n_mels: int) -> None:
        super().__init__()
        self.bands = nn.BatchNorm1d(n_mels)
        stages: list[nn.Module] = []
        before, height = 1, n_mels
        for number, width in enumerate(config.widths):
            stride = (2, 2 if number < config.time_stages else 1)
            # A second convolution at the first stage would cost as much as all the others.
            stages.append(ConvStage(before, width, stride, plain=number == 0))
            before, height = width, -(-height // 2)
        self.stages = nn.Sequential(*stages)
        self.project = nn.Linear(before * height, config.width)

    def forward(self, mel: Tensor) -> Tensor:
        maps = self.stages(self.bands(mel)[:, None])  # [B, C, bands, L']
        return self.project(maps.flatten(1, 2).transpose(1, 2))


class AudioEncoder(nn.Module):
    """mel [B, n_mels, L] to what the text decoder attends to, [B, N, W]."""

    def __init__(self, config: PatchConfig | ConvConfig, n_mels: int, dropout: float) -> None:
        super().__init__()
        self.stem = (
            Patches(config, n_mels)
            if isinstance(config, PatchConfig)
            else Convolutions(config, n_mels)
        )
        blocks = (EncoderBlock(config.width, config.heads, dropout) for _ in range(config.layers))
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(config.width)
        self.shift, self.dropout = config.shift, dropout

    def forward(self, mel: Tensor) -> Tensor:
        x = self.stem(mel)
        first = int(torch.randint(self.shift + 1, ())) if self.training else 0
        x = x + sinusoids(first + x.shape[1], x.shape[2], x)[first:]
        x = F.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def sinusoids(length: int, width: int, like: Tensor) -> Tensor:
    """Fixed positions [length, width]: defined for any length, unlike learned ones."""
    rates = torch.exp(torch.arange(0, width, 2, device=like.device) * (-math.log(1e4) / width))
    angles = torch.arange(length, device=like.device)[:, None] * rates
    table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :width]
    return table.to(like.dtype)
