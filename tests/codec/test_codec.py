"""The codec as a whole: sizes, shapes, lengths, learning."""

from __future__ import annotations

import copy

import pytest
import torch
import yaml
from torch import nn

from diffsound.codec import Codec, CodecConfig, Conv2dConfig, LinearConfig, QuantizerConfig
from diffsound.codec.losses import reconstruction_loss
from diffsound.config import dump_yaml, parse_config
from diffsound.errors import ConfigError, InputError

SMALL_2D = Conv2dConfig(
    width=8,
    multipliers=(1, 2, 2),
    strides=((2, 2), (2, 3)),
    encoder_blocks=1,
    decoder_blocks=1,
    attention_levels=(2,),
    latent=8,
    norm_groups=4,
)
LINEAR = LinearConfig(time_stride=4, latent=12)
BACKBONES = pytest.mark.parametrize("backbone", [SMALL_2D, LINEAR], ids=["conv2d", "linear"])


def make(backbone: LinearConfig | Conv2dConfig, layout: str) -> Codec:
    quantizer = {"layout": layout, "codebook_size": 16, "code_dim": 4, "update": "ema"}
    if layout in ("product", "residual"):
        quantizer["rows"] = 3
    return Codec(
        CodecConfig(
            n_mels=16, backbone=backbone, quantizer=QuantizerConfig.model_validate(quantizer)
        )
    )


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_paper_codec_has_the_published_sizes() -> None:
    with torch.device("meta"):
        codec = Codec(CodecConfig.paper())
    assert parameters(codec) == 71_940_481
    assert parameters(codec.encoder) == 29_295_872
    assert parameters(codec.decoder) == 42_447_489
    assert parameters(codec.quant_conv) == parameters(codec.post_quant_conv) == 65_792
    assert parameters(codec.quantizer) == 65_536


def test_paper_codec_turns_848_frames_into_5_by_53_tokens() -> None:
    with torch.device("meta"):
        codec = Codec(CodecConfig.paper())
        latent = codec.encoder(torch.empty(1, 80, 848))
        assert latent.shape == (1, 256, 5, 53)
        assert codec.decoder(latent).shape == (1, 80, 848)
    assert (codec.rows, codec.codebook_size, codec.time_stride) == (5, 256, 16)


def test_small_codec_is_small() -> None:
    with torch.device("meta"):
        codec = Codec(CodecConfig.small())
    assert (codec.rows, codec.codebook_size, codec.time_stride) == (8, 512, 16)
    assert parameters(codec) < 12_000_000


@pytest.mark.parametrize("layout", ["shared", "per_row", "product", "residual"])
@BACKBONES
@torch.no_grad()
def test_any_number_of_frames(backbone: LinearConfig | Conv2dConfig, layout: str) -> None:
    codec = make(backbone, layout).eval()
    rows = {"shared": codec.config.latent_rows, "per_row": codec.config.latent_rows}.get(layout, 3)
    stride = codec.time_stride
    for frames in (1, stride - 1, stride, stride + 1, 3 * stride, 50):
        mel = torch.rand(2, 16, frames)
        tokens = codec.encode(mel)
        columns = -(-frames // stride)
        assert tokens.shape == (2, rows, columns)
        assert tokens.dtype == torch.int64
        decoded = codec.decode(tokens)
        assert decoded.shape == (2, 16, columns * stride)
        output = codec(mel)
        assert output.mel.shape == mel.shape
        # Training's way through the codes and the way of decoding are one.
        torch.testing.assert_close(output.mel, decoded[..., :frames], atol=1e-5, rtol=1e-5)


@BACKBONES
def test_missing_frames_repeat_the_last(backbone: LinearConfig | Conv2dConfig) -> None:
    codec = make(backbone, "product")
    codec(torch.rand(4, 16, 60))  # places the codes
    codec.eval()
    mel = torch.rand(1, 16, codec.time_stride * 2 + 1)
    filled = torch.cat([mel, mel[..., -1:].repeat(1, 1, codec.time_stride - 1)], dim=2)
    assert torch.equal(codec.encode(mel), codec.encode(filled))


@BACKBONES
def test_a_clip_has_the_same_tokens_alone_and_in_a_batch(
    backbone: LinearConfig | Conv2dConfig,
) -> None:
    torch.manual_seed(0)
    codec = make(backbone, "product")
    mel = torch.rand(5, 16, 48)
    codec(mel)
    codec.eval()
    together = codec.encode(mel)
    assert together.unique().numel() > 4
    alone = torch.cat([codec.encode(clip[None]) for clip in mel])
    assert torch.equal(together, alone)
    torch.testing.assert_close(
        codec.decode(together), torch.cat([codec.decode(grid[None]) for grid in together])
    )


@pytest.mark.parametrize(
    ("layout", "update"), [("shared", "gradient"), ("product", "ema"), ("residual", "ema")]
)
def test_it_learns(layout: str, update: str) -> None:
    torch.manual_seed(0)
    quantizer = {
        "layout": layout,
        "codebook_size": 16,
        "code_dim": 8,
        "update": update,
        "rows": 4 if layout != "shared" else None,
    }
    backbone = LinearConfig(time_stride=2, latent=24)
    config = {"n_mels": 8, "backbone": backbone.model_dump(), "quantizer": quantizer}
    codec = Codec(CodecConfig.model_validate(config))
    # Ridges that move: something with structure in both axes.
    phase = torch.arange(4)[:, None, None] + torch.arange(16) * 0.4
    mel = (torch.sin(phase + torch.arange(8)[:, None] * 0.7) + 1) / 2
    optimizer = torch.optim.AdamW(codec.parameters(), lr=3e-3)
    losses = []
    for _ in range(80):
        output = codec(mel)
        reconstruction = reconstruction_loss(output.mel, mel)
        losses.append(float(reconstruction.detach()))
        optimizer.zero_grad()
        (reconstruction + output.quantizer_loss).backward()
        optimizer.step()
    assert min(losses[-5:]) < 0.35 * losses[0]


def test_quantizer_loss_has_the_configs_weights() -> None:
    torch.manual_seed(0)
    mel = torch.rand(1, 16, 12)
    config = CodecConfig(
        n_mels=16,
        backbone=LINEAR,
        quantizer=CodecConfig.official().quantizer.model_copy(update={"code_dim": 4}),
    )
    output = Codec(config)(mel)
    expected = 0.25 * output.codebook_loss + 1.0 * output.commitment_loss
    torch.testing.assert_close(output.quantizer_loss, expected)
    assert output.codebook_loss > 0


def test_half_precision_training_keeps_full_precision_codes() -> None:
    codec = make(LINEAR, "product")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = codec(torch.rand(2, 16, 24))
    assert codec.quantizer.codebooks.codes.dtype == torch.float32
    assert output.quantizer_loss.dtype == torch.float32
    assert output.mel.isfinite().all()


def test_decoding_can_be_exported_for_any_length() -> None:
    class Decode(nn.Module):
        def __init__(self, codec: Codec) -> None:
            super().__init__()
            self.codec = codec

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.codec.decode(tokens)

    codec = make(LINEAR, "product").eval()
    columns = torch.export.Dim("columns", min=2, max=1000)
    exported = torch.export.export(
        Decode(codec), (torch.zeros(1, 3, 5, dtype=torch.long),), dynamic_shapes=({2: columns},)
    ).module()
    tokens = torch.randint(16, (1, 3, 9))
    torch.testing.assert_close(exported(tokens), codec.decode(tokens))


def test_tokens_of_a_file_are_decoded_as_they_are() -> None:
    codec = make(LINEAR, "product").eval()
    tokens = torch.randint(16, (1, 3, 4))
    assert torch.equal(codec.decode(tokens.to(torch.uint16)), codec.decode(tokens))


def test_the_last_layer_feeds_the_mel() -> None:
    for backbone in (LINEAR, SMALL_2D):
        codec = make(backbone, "product")
        (gradient,) = torch.autograd.grad(codec(torch.rand(1, 16, 24)).mel.sum(), codec.last_layer)
        assert gradient.abs().sum() > 0


@pytest.mark.parametrize(
    ("mel", "said"),
    [
        (torch.rand(1, 15, 8), r"\[batch, 16, frames"),
        (torch.rand(1, 16, 0), r"\[batch, 16, frames"),
        (torch.rand(16, 8), r"\[batch, 16, frames"),
    ],
)
def test_a_mel_of_the_wrong_shape_is_refused(mel: torch.Tensor, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make(LINEAR, "product").encode(mel)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (torch.zeros(1, 4, 2, dtype=torch.long), r"\[batch, 3, columns"),
        (torch.zeros(1, 3, 0, dtype=torch.long), r"\[batch, 3, columns"),
        (torch.full((1, 3, 2), 16), r"0\.\.15"),  # the mask token
        (torch.full((1, 3, 2), -1), r"0\.\.15"),
    ],
)
def test_tokens_that_are_none_are_refused(tokens: torch.Tensor, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make(LINEAR, "product").decode(tokens)


@BACKBONES
@torch.inference_mode()
def test_a_sketch_is_the_codes_that_are_there(backbone: LinearConfig | Conv2dConfig) -> None:
    codec = make(backbone, "residual").eval()
    tokens = torch.randint(16, (2, 3, 5), generator=torch.Generator().manual_seed(0))
    for rows in (1, 2, 3):
        # The obvious form: the codes of the other rows taken to be zero.
        zeroed = copy.deepcopy(codec)
        for stage in zeroed.quantizer.books()[rows:]:
            stage.codes.zero_()
        expected = zeroed.decode(tokens)
        torch.testing.assert_close(codec.sketch(tokens[:, :rows]), expected)


@pytest.mark.parametrize(("layout", "rows"), [("residual", 0), ("residual", 4), ("product", 2)])
def test_sketches_that_cannot_be_made_are_refused(layout: str, rows: int) -> None:
    codec = make(LINEAR, layout)
    assert codec.sketches == (layout == "residual")
    with pytest.raises(InputError, match="a sketch needs the first 1 to 3 rows"):
        codec.sketch(torch.zeros(1, rows, 2, dtype=torch.long))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"n_mels": 81}, "n_mels 81 is not a multiple of the frequency stride 16"),
        ({"backbone": {"kind": "conv2d", "strides": [[2, 2]]}}, "5 multipliers need 4 strides"),
        ({"backbone": {"kind": "conv2d", "attention_levels": [5]}}, "attention_levels"),
        ({"backbone": {"kind": "conv2d", "width": 100}}, "norm_groups"),
        ({"backbone": {"kind": "linear", "time_stride": 0}}, "time_stride"),
        ({"quantizer": {"layout": "product"}}, "needs rows"),
        ({"quantizer": {"layout": "shared", "rows": 2}}, "leave rows out"),
        ({"quantizer": {"dropout": 0.5}}, "dropout"),
        ({"quantizer": {"codebok_size": 2}}, "did you mean 'codebook_size'"),
    ],
)
def test_wrong_configs_are_refused(config: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_config(CodecConfig, config)


def test_retired_options_are_read_where_they_were_off() -> None:
    old = {"quantizer": {"normalise": False, "dropout": 0.0, "codebook_size": 128}}
    assert parse_config(CodecConfig, old).codebook_size == 128


@pytest.mark.parametrize("preset", ["paper", "official", "small", "tiny"])
def test_presets_survive_being_written(preset: str) -> None:
    config = getattr(CodecConfig, preset)()
    assert parse_config(CodecConfig, yaml.safe_load(dump_yaml(config))) == config


def test_frozen_tokens_stay_while_the_decoder_learns() -> None:
    torch.manual_seed(0)
    codec = Codec(CodecConfig.tiny())
    mel = torch.rand(2, 80, 16)
    codec(mel)  # the first batch places the codes
    codec.freeze_tokens()
    codec.train()
    before = codec.eval().encode(mel)
    kept = {name: tensor.clone() for name, tensor in codec.token_state().items()}
    learning = [parameter for parameter in codec.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(learning, lr=1e-2)
    decoded = codec.decode(before).detach()
    for _ in range(3):
        codec.train()
        (codec(mel).mel - mel).abs().mean().backward()
        optimizer.step()
    assert torch.equal(codec.eval().encode(mel), before)
    assert all(torch.equal(codec.token_state()[name], tensor) for name, tensor in kept.items())
    assert not torch.allclose(codec.decode(before), decoded)
