"""Published files in, a bundle out that makes sound with the published numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import published
from cli_support import typed
from diffsound.audio.mel import MelConfig
from diffsound.codec.codec import Codec
from diffsound.codec.config import CodecConfig, Conv2dConfig, QuantizerConfig
from diffsound.errors import BundleError
from diffsound.generation.pipeline import TextToSound
from diffsound.model.published import import_published
from diffsound.vocoder import MelGANConfig
from diffsound.vocoder.melgan import MelGAN

CODES, COLUMNS, STEPS = 6, 4, 8
CODEC = CodecConfig(
    backbone=Conv2dConfig(
        width=32, multipliers=(1, 1, 1, 1, 1), encoder_blocks=1, decoder_blocks=1
    ),
    quantizer=QuantizerConfig(codebook_size=CODES, code_dim=16),
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The three files as published: a Diffsound checkpoint, a VQ-VAE's, a MelGAN's."""
    folder = tmp_path_factory.mktemp("published")
    averaged = published.diffsound(2, 32, 32, CODES, CODEC.rows, COLUMNS, STEPS)
    vqvae = published.codec(CODEC)
    model = {f"transformer.{name}": torch.zeros_like(t) for name, t in averaged.items()}
    model |= {f"content_codec.{name}": tensor for name, tensor in vqvae.items()}
    model["transformer.condition_emb.token_embedding.weight"] = torch.zeros(3)
    torch.manual_seed(2)
    melgan = MelGAN(MelGANConfig(base=4, residual_layers=1), MelConfig())
    contents = {
        "decoder": {"model": model, "ema": averaged, "last_epoch": 3},
        "codec": {"state_dict": vqvae, "epoch": 1},
        "vocoder": melgan.state_dict(),
    }
    for name, content in contents.items():
        torch.save(content, folder / f"{name}.pth")
    return {name: folder / f"{name}.pth" for name in contents}


def test_command_line_to_sound(files: dict[str, Path], clip_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    arguments = ["bundle", "import", str(out), "--heads", "4", "--text-encoder", str(clip_folder)]
    for name, path in files.items():
        arguments += [f"--{name}", str(path)]
    assert typed(*arguments) == 0
    pipeline = TextToSound.from_pretrained(out)
    assert pipeline.bundle.config.defaults.sampler == "official"
    assert pipeline.bundle.config.defaults.truncation == 0.85
    (sound,) = pipeline("a dog barks", seed=1)
    assert sound.tokens.shape == (CODEC.rows, COLUMNS)
    assert len(sound.wave) == COLUMNS * CODEC.time_stride * 256
    assert np.isfinite(sound.wave).all()
    assert np.abs(sound.wave).max() > 0


def test_the_stages_carry_the_published_weights(files: dict[str, Path], clip_folder: Path) -> None:
    bundle = import_published(
        files["decoder"],
        codec=files["codec"],
        vocoder=files["vocoder"],
        text_encoder=clip_folder,
        heads=4,
    )
    torch.manual_seed(1)
    codec = Codec(CODEC).eval()
    tokens = torch.randint(CODES, (1, CODEC.rows, COLUMNS))
    torch.testing.assert_close(bundle.codec.decode(tokens), codec.decode(tokens))
    mel = torch.rand(1, 80, 20)
    torch.manual_seed(2)
    melgan = MelGAN(MelGANConfig(base=4, residual_layers=1), MelConfig()).eval()
    torch.testing.assert_close(bundle.vocoder(mel), melgan(mel))
    # The raw weights are all zero here, the averaged ones are not.
    assert bundle.decoder.transformer.codes.weight.abs().sum() > 0


def test_the_vqvae_inside_the_decoders_file(files: dict[str, Path], clip_folder: Path) -> None:
    inside = import_published(files["decoder"], text_encoder=clip_folder, heads=4)
    own = import_published(
        files["decoder"], codec=files["codec"], text_encoder=clip_folder, heads=4
    )
    assert inside.codec_fingerprint == own.codec_fingerprint
    assert inside.config.vocoder.model.kind == "griffin_lim"


def test_raw_weights_on_request(files: dict[str, Path], clip_folder: Path) -> None:
    bundle = import_published(files["decoder"], text_encoder=clip_folder, heads=4, ema=False)
    assert bundle.decoder.transformer.codes.weight.abs().sum() == 0


class ModelCheckpoint:
    """A class that is not there when the file is read; only its name is in the file."""


def test_a_lightning_checkpoint_of_the_vqvae(
    files: dict[str, Path], clip_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = torch.load(files["codec"], weights_only=True)
    saved = content | {"callbacks": {ModelCheckpoint: {"best_model_score": 1.0}}}
    torch.save(saved, tmp_path / "last.ckpt")
    monkeypatch.delitem(globals(), "ModelCheckpoint")
    read = import_published(
        files["decoder"], codec=tmp_path / "last.ckpt", text_encoder=clip_folder, heads=4
    )
    plain = import_published(
        files["decoder"], codec=files["codec"], text_encoder=clip_folder, heads=4
    )
    assert read.codec_fingerprint == plain.codec_fingerprint


def test_files_in_the_wrong_place(files: dict[str, Path], clip_folder: Path) -> None:
    with pytest.raises(BundleError):
        import_published(files["vocoder"], text_encoder=clip_folder)
    with pytest.raises(BundleError, match="VQ-VAE"):
        import_published(
            files["decoder"], codec=files["vocoder"], text_encoder=clip_folder, heads=4
        )
