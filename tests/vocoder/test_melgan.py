"""MelGAN: the published network under its published names."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch import nn

from diffsound.audio.mel import MelConfig
from diffsound.errors import BundleError, ConfigError
from diffsound.vocoder import MelGANConfig
from diffsound.vocoder.melgan import (
    MelGAN,
    WeightNormConv1d,
    WeightNormConvTranspose1d,
    melgan_from_published,
)

SMALL = MelGANConfig(base=4, residual_layers=2, ratios=(4, 2))
SMALL_MEL = MelConfig(n_fft=64, hop_length=8, n_mels=10)


def plain_published(n_mels: int, base: int, residual_layers: int, ratios: list[int]) -> nn.Module:
    """The generator written out with torch's classic weight norm, as an independent oracle."""

    def normed(module: nn.Module) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return nn.utils.weight_norm(module)

    class Block(nn.Module):
        def __init__(self, width: int, dilation: int) -> None:
            super().__init__()
            self.block = nn.Sequential(
                nn.LeakyReLU(0.2),
                nn.ReflectionPad1d(dilation),
                normed(nn.Conv1d(width, width, 3, dilation=dilation)),
                nn.LeakyReLU(0.2),
                normed(nn.Conv1d(width, width, 1)),
            )
            self.shortcut = normed(nn.Conv1d(width, width, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.shortcut(x) + self.block(x)

    width = base * 2 ** len(ratios)
    layers: list[nn.Module] = [nn.ReflectionPad1d(3), normed(nn.Conv1d(n_mels, width, 7))]
    for ratio in ratios:
        up = nn.ConvTranspose1d(
            width, width // 2, 2 * ratio, ratio, ratio // 2 + ratio % 2, ratio % 2
        )
        layers += [nn.LeakyReLU(0.2), normed(up)]
        width //= 2
        layers += [Block(width, 3**index) for index in range(residual_layers)]
    layers += [nn.LeakyReLU(0.2), nn.ReflectionPad1d(3), normed(nn.Conv1d(width, 1, 7)), nn.Tanh()]

    class Generator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Sequential(*layers)

    return Generator()


def test_the_published_size_and_names() -> None:
    melgan = MelGAN(MelGANConfig(), MelConfig())
    assert sum(parameter.numel() for parameter in melgan.parameters()) == 4_266_050
    pattern = r"model\.\d+\.(block\.\d+\.|shortcut\.)?(weight_g|weight_v|bias)"
    assert all(re.fullmatch(pattern, name) for name in melgan.state_dict())
    assert melgan.state_dict()["model.3.weight_g"].shape == (512, 1, 1)


@pytest.mark.parametrize("ratios", [[4, 2], [3, 2], [8]])
def test_published_weights_give_the_published_wave(ratios: list[int]) -> None:
    published = plain_published(10, 4, 2, ratios)
    for parameter in published.parameters():
        nn.init.normal_(parameter, std=0.3)
    hop = torch.tensor(ratios).prod().item()
    mel_config = MelConfig(n_fft=64, hop_length=int(hop), n_mels=10)
    config, weights = melgan_from_published(published.state_dict(), mel_config)
    assert config == MelGANConfig(base=4, residual_layers=2, ratios=tuple(ratios))
    melgan = MelGAN(config, mel_config)
    melgan.load_state_dict(weights)
    mel = torch.rand(2, 10, 12)
    torch.testing.assert_close(melgan(mel), published.model(mel).squeeze(1), atol=1e-5, rtol=1e-5)


def test_the_published_checkpoint_is_recognised_from_its_shapes() -> None:
    own = MelGAN(MelGANConfig(), MelConfig())
    config, weights = melgan_from_published(own.state_dict())
    assert config == MelGANConfig()
    assert weights.keys() == own.state_dict().keys()


def test_other_weights_are_refused() -> None:
    weights = MelGAN(SMALL, SMALL_MEL).state_dict()
    without = {name: value for name, value in weights.items() if name != "model.1.bias"}
    for wrong, expected in [
        ({}, "not the weights of a MelGAN"),
        ({"encoder.weight": torch.zeros(3)}, "not the weights of a MelGAN"),
        (without, r"model\.1\.bias"),
        ({**weights, "model.99.bias": torch.zeros(1)}, r"model\.99\.bias"),
    ]:
        with pytest.raises(BundleError, match=expected):
            melgan_from_published(wrong, SMALL_MEL)
    with pytest.raises(BundleError, match="hop_length is 256"):
        melgan_from_published(weights, MelConfig())
    with pytest.raises(BundleError, match=r"\(64, 10, 7\)|\(16, 10, 7\)"):
        melgan_from_published(weights, SMALL_MEL.model_copy(update={"n_mels": 12}))


def test_ratios_must_make_the_hop() -> None:
    with pytest.raises(ConfigError, match="multiply to 8"):
        MelGAN(SMALL, MelConfig())


def test_fused_weights_give_the_same_wave() -> None:
    melgan = MelGAN(SMALL, SMALL_MEL)
    for parameter in melgan.parameters():
        nn.init.normal_(parameter, std=0.3)
    mel = torch.rand(2, 10, 9)
    before = melgan(mel)
    fused = melgan.fuse().fuse()
    torch.testing.assert_close(fused(mel), before)
    assert not any("weight_v" in name for name in fused.state_dict())


@pytest.mark.parametrize(
    "layer", [WeightNormConv1d(3, 5, 3), WeightNormConvTranspose1d(3, 5, 4, stride=2, padding=1)]
)
def test_weight_norm_separates_length_from_direction(layer: nn.Module) -> None:
    x = torch.randn(2, 3, 8)
    before = layer(x)
    with torch.no_grad():
        layer.weight_v.mul_(7)
    torch.testing.assert_close(layer(x), before)
    with torch.no_grad():
        layer.weight_g.mul_(2)
    bias = layer.bias[:, None]
    torch.testing.assert_close(layer(x) - bias, 2 * (before - bias), atol=1e-6, rtol=1e-4)


def test_the_wave_stays_in_range() -> None:
    melgan = MelGAN(SMALL, SMALL_MEL)
    for parameter in melgan.parameters():
        nn.init.normal_(parameter, std=3)
    assert melgan(torch.rand(1, 10, 20)).abs().max() <= 1
