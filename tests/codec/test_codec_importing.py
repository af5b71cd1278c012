"""Published checkpoints, against a slow reading of their keys with plain functions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from diffsound.codec import Codec
from diffsound.codec.importing import codec_from_published
from diffsound.errors import BundleError

WIDTHS = (32, 32, 64)
LATENT, CODES, CODE_DIM = 16, 12, 8
ENCODER_BLOCKS, DECODER_BLOCKS = 1, 2
LOWEST = len(WIDTHS) - 1


def checkpoint() -> dict[str, Tensor]:
    """Random weights under the published names (a VQ-VAE's `['state_dict']`)."""
    generator = torch.Generator().manual_seed(0)
    weights: dict[str, Tensor] = {}

    def conv(name: str, inputs: int, outputs: int, kernel: int) -> None:
        scale = (inputs * kernel * kernel) ** -0.5
        shape = (outputs, inputs, kernel, kernel)
        weights[f"{name}.weight"] = scale * torch.randn(shape, generator=generator)
        weights[f"{name}.bias"] = 0.1 * torch.randn(outputs, generator=generator)

    def norm(name: str, channels: int) -> None:
        weights[f"{name}.weight"] = 1 + 0.1 * torch.randn(channels, generator=generator)
        weights[f"{name}.bias"] = 0.1 * torch.randn(channels, generator=generator)

    def block(name: str, inputs: int, outputs: int) -> None:
        norm(f"{name}.norm1", inputs)
        conv(f"{name}.conv1", inputs, outputs, 3)
        norm(f"{name}.norm2", outputs)
        conv(f"{name}.conv2", outputs, outputs, 3)
        if inputs != outputs:
            conv(f"{name}.nin_shortcut", inputs, outputs, 1)

    def attention(name: str, channels: int) -> None:
        norm(f"{name}.norm", channels)
        for part in ("q", "k", "v", "proj_out"):
            conv(f"{name}.{part}", channels, channels, 1)

    def middle(name: str) -> None:
        block(f"{name}.block_1", WIDTHS[-1], WIDTHS[-1])
        attention(f"{name}.attn_1", WIDTHS[-1])
        block(f"{name}.block_2", WIDTHS[-1], WIDTHS[-1])

    conv("encoder.conv_in", 1, WIDTHS[0], 3)
    channels = WIDTHS[0]
    for level, width in enumerate(WIDTHS):
        for index in range(ENCODER_BLOCKS):
            block(f"encoder.down.{level}.block.{index}", channels, width)
            channels = width
            if level == LOWEST:
                attention(f"encoder.down.{level}.attn.{index}", width)
        if level < LOWEST:
            conv(f"encoder.down.{level}.downsample.conv", width, width, 3)
    middle("encoder.mid")
    norm("encoder.norm_out", WIDTHS[-1])
    conv("encoder.conv_out", WIDTHS[-1], LATENT, 3)
    conv("quant_conv", LATENT, CODE_DIM, 1)
    weights["quantize.embedding.weight"] = torch.randn(CODES, CODE_DIM, generator=generator)
    conv("post_quant_conv", CODE_DIM, LATENT, 1)
    conv("decoder.conv_in", LATENT, WIDTHS[-1], 3)
    middle("decoder.mid")
    channels = WIDTHS[-1]
    for level in reversed(range(len(WIDTHS))):
        for index in range(DECODER_BLOCKS):
            block(f"decoder.up.{level}.block.{index}", channels, WIDTHS[level])
            channels = WIDTHS[level]
            if level == LOWEST:
                attention(f"decoder.up.{level}.attn.{index}", WIDTHS[level])
        if level > 0:
            conv(f"decoder.up.{level}.upsample.conv", WIDTHS[level], WIDTHS[level], 3)
    norm("decoder.norm_out", WIDTHS[0])
    conv("decoder.conv_out", WIDTHS[0], 1, 3)
    conv("loss.discriminator.main.0", 1, 8, 4)
    return weights


class Published:
    """The published arithmetic, written out on the published names."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.weights = weights

    def conv(self, name: str, x: Tensor, **options: int) -> Tensor:
        return F.conv2d(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], **options)

    def swish_norm(self, name: str, x: Tensor) -> Tensor:
        normed = self.norm(name, x)
        return normed / (1 + (-normed).exp())

    def norm(self, name: str, x: Tensor) -> Tensor:
        grouped = x.reshape(len(x), 32, -1)
        mean = grouped.mean(-1, keepdim=True)
        variance = (grouped - mean).square().mean(-1, keepdim=True)
        normed = ((grouped - mean) / (variance + 1e-6).sqrt()).reshape(x.shape)
        scale, shift = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return normed * scale[:, None, None] + shift[:, None, None]

    def block(self, name: str, x: Tensor) -> Tensor:
        h = self.conv(f"{name}.conv1", self.swish_norm(f"{name}.norm1", x), padding=1)
        h = self.conv(f"{name}.conv2", self.swish_norm(f"{name}.norm2", h), padding=1)
        if f"{name}.nin_shortcut.weight" in self.weights:
            x = self.conv(f"{name}.nin_shortcut", x)
        return x + h

    def attention(self, name: str, x: Tensor) -> Tensor:
        batch, channels = x.shape[:2]
        normed = self.norm(f"{name}.norm", x)
        q, k, v = (
            self.conv(f"{name}.{part}", normed).reshape(batch, channels, -1) for part in "qkv"
        )
        scores = torch.einsum("bci,bcj->bij", q, k) * channels**-0.5
        attended = torch.einsum("bij,bcj->bci", scores.softmax(-1), v)
        return x + self.conv(f"{name}.proj_out", attended.reshape(x.shape))

    def middle(self, name: str, x: Tensor) -> Tensor:
        x = self.attention(f"{name}.attn_1", self.block(f"{name}.block_1", x))
        return self.block(f"{name}.block_2", x)

    def encode(self, mel: Tensor) -> Tensor:
        """mel in [0, 1] → what the codebook is compared with."""
        x = self.conv("encoder.conv_in", (2 * mel - 1)[:, None], padding=1)
        for level in range(len(WIDTHS)):
            for index in range(ENCODER_BLOCKS):
                x = self.block(f"encoder.down.{level}.block.{index}", x)
                if level == LOWEST:
                    x = self.attention(f"encoder.down.{level}.attn.{index}", x)
            if level < LOWEST:
                padded = F.pad(x, (0, 1, 0, 1))
                x = self.conv(f"encoder.down.{level}.downsample.conv", padded, stride=2)
        x = self.swish_norm("encoder.norm_out", self.middle("encoder.mid", x))
        return self.conv("quant_conv", self.conv("encoder.conv_out", x, padding=1))

    def decode(self, tokens: Tensor) -> Tensor:
        codes = self.weights["quantize.embedding.weight"][tokens].permute(0, 3, 1, 2)
        x = self.conv("post_quant_conv", codes)
        x = self.middle("decoder.mid", self.conv("decoder.conv_in", x, padding=1))
        for level in reversed(range(len(WIDTHS))):
            for index in range(DECODER_BLOCKS):
                x = self.block(f"decoder.up.{level}.block.{index}", x)
                if level == LOWEST:
                    x = self.attention(f"decoder.up.{level}.attn.{index}", x)
            if level > 0:
                doubled = x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
                x = self.conv(f"decoder.up.{level}.upsample.conv", doubled, padding=1)
        x = self.conv("decoder.conv_out", self.swish_norm("decoder.norm_out", x), padding=1)
        return (x[:, 0] + 1) / 2


@torch.no_grad()
def test_imported_weights_give_the_published_numbers() -> None:
    weights = checkpoint()
    config, state = codec_from_published(weights, n_mels=16)
    codec = Codec(config).eval()
    codec.load_state_dict(state)
    published = Published(weights)
    mel = torch.rand(2, 16, 24)

    latent = published.encode(mel)
    torch.testing.assert_close(
        codec.quant_conv(codec.encoder(2 * mel - 1)), latent, atol=1e-4, rtol=1e-4
    )
    distances = (
        latent.permute(0, 2, 3, 1)[..., None, :] - weights["quantize.embedding.weight"]
    ).square()
    tokens = distances.sum(-1).argmin(-1)
    assert tokens.unique().numel() > 3
    assert torch.equal(codec.encode(mel), tokens)
    torch.testing.assert_close(codec.decode(tokens), published.decode(tokens), atol=1e-4, rtol=1e-4)


def test_sizes_are_read_from_the_shapes() -> None:
    config, _ = codec_from_published(checkpoint(), n_mels=16)
    assert config.backbone.model_dump() == {
        "kind": "conv2d",
        "width": 32,
        "multipliers": (1, 1, 2),
        "strides": ((2, 2), (2, 2)),
        "encoder_blocks": 1,
        "decoder_blocks": 2,
        "attention_levels": (2,),
        "latent": 16,
        "norm_groups": 32,
    }
    assert (config.rows, config.codebook_size, config.quantizer.code_dim) == (4, 12, 8)
    assert (config.quantizer.codebook_weight, config.quantizer.commitment_weight) == (0.25, 1.0)


@pytest.mark.parametrize("prefix", ["content_codec.", "first_stage_model."])
def test_it_is_found_inside_a_larger_checkpoint(prefix: str) -> None:
    weights = checkpoint()
    larger = {prefix + key: value for key, value in weights.items()}
    larger["transformer.transformer.to_logits.1.bias"] = torch.zeros(3)
    config, state = codec_from_published(larger, n_mels=16)
    expected_config, expected = codec_from_published(weights, n_mels=16)
    assert config == expected_config
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[key], expected[key]) for key in state)


def test_half_precision_weights_become_single() -> None:
    _, state = codec_from_published({k: v.half() for k, v in checkpoint().items()}, n_mels=16)
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}


@pytest.mark.parametrize(
    "key",
    [
        "encoder.conv_in.weight",
        "encoder.down.0.block.0.conv1.weight",
        "encoder.mid.attn_1.q.bias",
        "decoder.up.2.block.1.norm2.weight",
        "post_quant_conv.weight",
    ],
)
def test_a_missing_key_is_named(key: str) -> None:
    weights = checkpoint()
    del weights[key]
    with pytest.raises(BundleError, match=f"no '{key}'"):
        codec_from_published(weights, n_mels=16)


def test_an_unexpected_key_is_named() -> None:
    weights = checkpoint() | {"encoder.extra.weight": torch.zeros(1)}
    with pytest.raises(BundleError, match=r"unexpected 'encoder\.extra\.weight'"):
        codec_from_published(weights, n_mels=16)


def test_a_wrong_shape_is_named() -> None:
    weights = checkpoint()
    weights["decoder.conv_out.weight"] = torch.zeros(3, 32, 3, 3)
    with pytest.raises(BundleError, match=r"conv_out\.weight' is \[3, 32, 3, 3\], not \[1, 32"):
        codec_from_published(weights, n_mels=16)


@pytest.mark.parametrize("key", ["encoder.conv_in.weight", "quantize.embedding.weight"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3, 4)])
def test_a_weight_of_no_use_is_named(key: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(BundleError, match=key):
        codec_from_published(checkpoint() | {key: torch.zeros(shape)}, n_mels=16)


def test_another_kind_of_file_is_refused() -> None:
    with pytest.raises(BundleError, match="has no VQ-VAE"):
        codec_from_published({"model.1.weight_g": torch.zeros(1)})


def test_bands_that_do_not_divide_are_refused() -> None:
    with pytest.raises(BundleError, match="n_mels 18 is not a multiple"):
        codec_from_published(checkpoint(), n_mels=18)
