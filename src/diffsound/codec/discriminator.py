"""The patch discriminator: is each patch of a mel real or reconstructed?"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from diffsound.codec.config import DiscriminatorConfig
from diffsound.errors import InputError


@dataclass(frozen=True)
class PatchJudgement:
    """logits: [B, 1, H, W], one per patch, high for real; features: what each layer gave."""

    logits: Tensor
    features: list[Tensor]


class PatchDiscriminator(nn.Module):
    """PatchGAN on mels [B, n_mels, L] in [0, 1]; with the defaults 80×848 gives 8×104 patches."""

    def __init__(self, config: DiscriminatorConfig) -> None:
        super().__init__()
        # The first layer sees raw mels, the last gives the verdict: neither is normalised.
        blocks: list[nn.Module] = [_conv(config, 1, config.width, stride=2)]
        channels = config.width
        for index in range(1, config.layers + 1):
            wider = config.width * min(2**index, 8)
            blocks.append(_block(config, channels, wider, stride=2 if index < config.layers else 1))
            channels = wider
        self.blocks = nn.ModuleList(blocks)
        self.head = _conv(config, channels, 1, stride=1)
        # Halved `layers` times, then the two last layers of stride 1 take a patch each.
        self.smallest = 3 * 2**config.layers
        self.apply(_initialise)

    def forward(self, mel: Tensor) -> PatchJudgement:
        if min(mel.shape[1:]) < self.smallest:
            raise InputError(
                f"the discriminator needs at least {self.smallest} bands and frames, "
                f"not {mel.shape[1]} and {mel.shape[2]}"
            )
        x = 2 * mel[:, None] - 1
        features: list[Tensor] = []
        for block in self.blocks:
            x = F.leaky_relu(block(x), 0.2)
            features.append(x)
        return PatchJudgement(self.head(x), features)


def _block(config: DiscriminatorConfig, channels: int, wider: int, stride: int) -> nn.Module:
    if config.norm == "batch":
        return nn.Sequential(
            _conv(config, channels, wider, stride, bias=False), nn.BatchNorm2d(wider)
        )
    if config.norm == "group":
        return nn.Sequential(
            _conv(config, channels, wider, stride, bias=False), nn.GroupNorm(1, wider)
        )
    return _conv(config, channels, wider, stride)


def _conv(
    config: DiscriminatorConfig, channels: int, wider: int, stride: int, bias: bool = True
) -> nn.Module:
    conv = nn.Conv2d(channels, wider, kernel_size=4, stride=stride, padding=1, bias=bias)
    nn.init.normal_(conv.weight, 0.0, 0.02)
    return spectral_norm(conv) if config.norm == "spectral" else conv


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
