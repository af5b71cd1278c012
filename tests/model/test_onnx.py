"""The exported networks against torch's, on a tiny bundle."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

from diffsound.audio.mel import MelConfig
from diffsound.codec import Codec
from diffsound.codec.config import FrameTextureConfig
from diffsound.decoder import SamplingSettings
from diffsound.decoder.config import DiffsoundConfig
from diffsound.decoder.diffsound import Diffsound
from diffsound.decoder.sampling import Choice
from diffsound.errors import BundleError, InputError
from diffsound.generation.pipeline import TextToSound
from diffsound.model.backends import networks
from diffsound.model.bundle import Bundle
from diffsound.model.onnx_export import (
    OPSET,
    AnyLength,
    ISTFTNetwork,
    MelGANNetwork,
    export_network,
    export_onnx,
    quantize,
)
from diffsound.model.onnx_runtime import Session
from diffsound.text.features import TextFeatures
from diffsound.vocoder import ISTFTConfig, MelGANConfig, build_vocoder
from support import bundle_with_rows_in_turn


@pytest.fixture(scope="module")
def exported(tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny bundle on disk with its ONNX files."""
    folder = tiny_bundle.save_pretrained(tmp_path_factory.mktemp("exported") / "tiny")
    export_onnx(Bundle.from_pretrained(folder), folder)
    return folder


def random_text(batch: int, words: int, dim: int) -> TextFeatures:
    mask = torch.ones(batch, words, dtype=torch.bool)
    mask[0, words // 2 + 1 :] = False
    features = torch.randn(batch, words, dim) * mask[..., None]
    return TextFeatures(features, mask, torch.randn(batch, dim))


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        yield


# The tiny decoder has learned 6 columns; a batch of 1, and 8 to 40 columns, were never traced.
@pytest.mark.parametrize(("batch", "columns", "words"), [(1, 8, 1), (2, 13, 4), (3, 40, 9)])
def test_decoder_step(
    exported: Path, tiny_bundle: Bundle, batch: int, columns: int, words: int
) -> None:
    decoder = tiny_bundle.decoder
    tokens = torch.randint(0, decoder.codebook_size + 1, (batch, decoder.rows, columns))
    t = torch.randint(1, decoder.config.timesteps + 1, (batch,))
    text = random_text(batch, words, decoder.text_dim)
    session = Session(exported / "onnx" / "decoder.onnx")
    given = session(tokens=tokens, t=t, text=text.features, mask=text.mask, pooled=text.pooled)
    torch.testing.assert_close(given, decoder(tokens, t, text), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("batch", "columns"), [(1, 8), (2, 31), (5, 200)])
def test_codec_and_vocoder(exported: Path, tiny_bundle: Bundle, batch: int, columns: int) -> None:
    codec = tiny_bundle.codec
    tokens = torch.randint(0, codec.codebook_size, (batch, codec.rows, columns))
    mel = codec.decode(tokens)
    given = Session(exported / "onnx" / "codec.onnx")(tokens=tokens)
    torch.testing.assert_close(given, mel, atol=1e-5, rtol=1e-4)
    wave = Session(exported / "onnx" / "vocoder.onnx")(mel=mel)
    torch.testing.assert_close(wave, tiny_bundle.vocoder(mel), atol=1e-4, rtol=1e-3)


def test_files_are_what_others_expect(exported: Path) -> None:
    for name in ("decoder", "codec", "vocoder"):
        model = onnx.load(exported / "onnx" / f"{name}.onnx")
        onnx.checker.check_model(model)
        assert model.opset_import[0].version >= min(OPSET, 17)
        first = model.graph.input[0].type.tensor_type.shape.dim
        assert first[0].dim_param
        assert first[2].dim_param


def test_same_sound_from_both_backends(exported: Path) -> None:
    torch_pipeline = TextToSound.from_pretrained(exported)
    pipeline = TextToSound.from_pretrained(exported, backend="onnx")
    options = {"seed": 3, "num_candidates": 2, "negative_prompt": "wind"}
    for a, b in zip(
        torch_pipeline("a dog barks", **options), pipeline("a dog barks", **options), strict=True
    ):
        assert np.array_equal(a.tokens, b.tokens)
        assert np.abs(a.wave - b.wave).max() < 1e-4
    for sampler in ("confidence", "official"):
        steps = {"confidence": 3, "official": None}[sampler]
        given = {"seed": 3, "sampler": sampler, "num_inference_steps": steps, "guidance_scale": 1.0}
        if sampler == "official":
            given["stride"] = 4
        a, b = torch_pipeline("rain", **given)[0], pipeline("rain", **given)[0]
        assert np.array_equal(a.tokens, b.tokens)


def test_early_choice_matches_torch(tmp_path: Path) -> None:
    folder = bundle_with_rows_in_turn().save_pretrained(tmp_path / "in-turn")
    export_onnx(Bundle.from_pretrained(folder), folder)
    seen: list[Tensor] = []

    def best(tokens: Tensor) -> Tensor:
        seen.append(tokens)
        return torch.tensor([1, 3])  # of two takes of two texts

    drawn = []
    for backend in ("torch", "onnx"):
        pipeline = TextToSound.from_pretrained(folder, backend=backend)
        text = pipeline.encode_text(["a dog", "rain on a roof"]).repeat(2)
        tokens = pipeline.decoder.generate(
            text,
            (pipeline.bundle.codec.rows, pipeline.bundle.columns(22050)),
            [torch.Generator().manual_seed(seed) for seed in range(4)],
            SamplingSettings(num_inference_steps=8, guidance_scale=2.0),
            negative=pipeline.encode_text([""]).repeat(4),
            together=2,
            choice=Choice(0.5, best),
        )
        drawn.append(tokens)
    assert torch.equal(*drawn)
    assert torch.equal(*seen)
    assert drawn[0].shape[0] == 2


def test_edits_run_on_the_exported_networks(exported: Path) -> None:
    pipeline = TextToSound.from_pretrained(exported, backend="onnx")
    (sound,) = pipeline("rain", seed=1)
    (edited,) = pipeline.vary(sound, "rain", 0.5, seed=2)
    reference = TextToSound.from_pretrained(exported)
    assert np.array_equal(edited.tokens, reference.vary(sound, "rain", 0.5, seed=2)[0].tokens)


def test_int8_is_near_and_smaller(exported: Path, tmp_path: Path, tiny_bundle: Bundle) -> None:
    float_file, int8_file = exported / "onnx" / "decoder.onnx", tmp_path / "decoder.onnx"
    shutil.copyfile(float_file, int8_file)
    quantize(int8_file)
    exact, near = Session(float_file), Session(int8_file)
    decoder = tiny_bundle.decoder
    text = random_text(2, 4, decoder.text_dim)
    inputs: dict[str, Tensor] = {
        "tokens": torch.randint(0, decoder.codebook_size, (2, decoder.rows, 12)),
        "t": torch.tensor([2, 9]),
        "text": text.features,
        "mask": text.mask,
        "pooled": text.pooled,
    }
    a, b = exact(**inputs), near(**inputs)
    assert not torch.equal(a, b)
    assert (a - b).norm() < 0.1 * a.norm()
    products = [
        node.op_type for node in onnx.load(int8_file).graph.node if "MatMul" in node.op_type
    ]
    # Five dense layers a block and the text's keys and values; the head stays as it was.
    assert products.count("MatMulInteger") >= 6 * decoder.config.layers
    assert int8_file.stat().st_size < float_file.stat().st_size
    assert list(tmp_path.iterdir()) == [int8_file]


def test_positions_of_any_length_are_the_decoders() -> None:
    for config in (
        DiffsoundConfig.tiny(),
        DiffsoundConfig.tiny().model_copy(update={"position": "column"}),
        DiffsoundConfig.tiny().model_copy(update={"position_scheme": "official"}),
    ):
        transformer = Diffsound(config).transformer
        for columns in (1, 2, 6, 7, 23):
            torch.testing.assert_close(
                AnyLength(transformer)(columns), transformer.positions(columns)
            )


@pytest.mark.parametrize(("fits", "rounds"), [(0, 0), (2, 3)])
def test_inverse_transform_as_a_convolution_is_torchs(fits: int, rounds: int) -> None:
    mel_config = MelConfig.full_band()
    vocoder = build_vocoder(ISTFTConfig(width=16, layers=1, fits=fits, rounds=rounds), mel_config)
    assert not isinstance(vocoder, torch.nn.Identity)
    network = ISTFTNetwork(vocoder)  # type: ignore[arg-type]
    mel = torch.rand(2, 80, 37)
    with torch.no_grad():
        torch.testing.assert_close(network(mel), vocoder(mel), atol=1e-4, rtol=1e-3)


def test_melgan_is_exported_without_its_weight_norm(tmp_path: Path) -> None:
    vocoder = build_vocoder(
        MelGANConfig(base=2, residual_layers=1, ratios=(16, 16)), MelConfig.full_band()
    )
    frames = torch.export.Dim("frames", min=8, max=1000)
    batch = torch.export.Dim("batch")
    network = MelGANNetwork(vocoder)  # type: ignore[arg-type]
    example = {"mel": torch.rand(2, 80, 16)}
    path = tmp_path / "vocoder.onnx"
    export_network(network, example, {"mel": {0: batch, 2: frames}}, path)
    mel = torch.rand(1, 80, 9)
    with torch.no_grad():
        torch.testing.assert_close(Session(path)(mel=mel), vocoder(mel), atol=1e-5, rtol=1e-4)


def test_a_codec_that_draws_textures(tmp_path: Path, tiny_bundle: Bundle) -> None:
    """The loop over the frames is one Scan: the same mel from the same generator, any length."""
    how = FrameTextureConfig(
        patch=2, width=8, layers=1, hidden=12, past=2, mixtures=2, rank=2,
        memory=(5,), skewed=True, text_dim=6, guidance=2.0,
    )  # fmt: skip
    codec = Codec(tiny_bundle.codec.config.model_copy(update={"texture": how}))
    state = codec.state_dict() | tiny_bundle.codec.state_dict()
    codec.load_state_dict(state)
    codec.eval().requires_grad_(False)
    assert codec.texture is not None
    for weights in (codec.texture.gaussians, codec.texture.text, codec.texture.memory):
        getattr(weights, "weight", weights).normal_(std=0.2)
    part = tiny_bundle.config.codec.model_copy(update={"model": codec.config})
    config = tiny_bundle.config.model_copy(update={"codec": part})
    textured = replace(tiny_bundle, config=config, codec=codec).save_pretrained(tmp_path / "drawn")
    export_onnx(Bundle.from_pretrained(textured), textured)
    bundle = Bundle.from_pretrained(textured)
    exported = networks(bundle, "onnx").codec
    for columns in (8, 21):
        tokens = torch.randint(0, codec.codebook_size, (1, codec.rows, columns))
        for text in (None, torch.randn(1, 6)):
            drawn, expected = (
                decode(tokens, torch.Generator().manual_seed(4), text)
                for decode in (exported.decode, bundle.codec.decode)
            )
            torch.testing.assert_close(drawn, expected, atol=1e-4, rtol=1e-3)
        for other in (
            exported.decode(tokens, torch.Generator().manual_seed(5), text),
            exported.decode(tokens, torch.Generator().manual_seed(4)),
        ):
            assert not torch.allclose(drawn, other, atol=1e-3)


def test_what_cannot_run_is_refused(
    exported: Path, tmp_path: Path, tiny_bundle: Bundle, tiny_ar_bundle: Bundle
) -> None:
    plain = tiny_bundle.save_pretrained(tmp_path / "plain")
    with pytest.raises(BundleError, match="export the bundle first"):
        TextToSound.from_pretrained(plain, backend="onnx")
    with pytest.raises(InputError, match="unknown backend 'magic'"):
        TextToSound.from_pretrained(plain, backend="magic")
    with pytest.raises(InputError, match="runs on the CPU"):
        networks(tiny_bundle, "onnx", "meta")
    with pytest.raises(InputError, match="only diffusion decoders"):
        export_onnx(tiny_ar_bundle, tmp_path)
    with pytest.raises(BundleError, match="never saved"):
        export_onnx(tiny_bundle, tmp_path)

    (plain / "onnx").symlink_to(exported / "onnx")
    assert TextToSound.from_pretrained(plain, backend="onnx")
    with torch.random.fork_rng():
        torch.manual_seed(5)
        other = Diffsound(tiny_bundle.decoder.config)
    Bundle(
        config=tiny_bundle.config,
        codec=tiny_bundle.codec,
        decoder=other,
        vocoder=tiny_bundle.vocoder,
    ).save_pretrained(plain)
    with pytest.raises(BundleError, match="other decoder weights"):
        TextToSound.from_pretrained(plain, backend="onnx")


def test_damaged_export_is_refused(tmp_path: Path, exported: Path) -> None:
    folder = shutil.copytree(exported, tmp_path / "copy")
    path = folder / "onnx" / "codec.onnx"
    size = path.stat().st_size
    path.write_bytes(b"x" * size)
    with pytest.raises(BundleError, match="cannot be loaded"):
        TextToSound.from_pretrained(folder, backend="onnx")
    path.write_bytes(b"x")
    with pytest.raises(BundleError, match="cut short"):
        TextToSound.from_pretrained(folder, backend="onnx")
