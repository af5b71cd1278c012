"""Bundles: a round trip, and one clear line for everything that can be wrong with a folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from diffsound.codec.config import CodecConfig
from diffsound.decoder.config import DiffsoundConfig
from diffsound.errors import BundleError
from diffsound.generation.pipeline import TextToSound
from diffsound.generation.settings import GenerationDefaults
from diffsound.model.bundle import BUNDLED, Bundle, load_codec, read_config
from diffsound.model.checks import verify
from diffsound.weights import load_weights
from support import make_bundle


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "copy"))


def change(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refused(folder: Path, message: str) -> None:
    with pytest.raises(BundleError, match=message) as caught:
        Bundle.from_pretrained(folder)
    assert "\n" not in str(caught.value)


def test_round_trip(tiny_bundle: Bundle, tiny_folder: Path) -> None:
    loaded = Bundle.from_pretrained(tiny_folder)
    assert loaded.config.decoder == tiny_bundle.config.decoder
    assert loaded.card == tiny_bundle.card
    for stage in ("codec", "decoder", "vocoder"):
        ours, theirs = getattr(tiny_bundle, stage), getattr(loaded, stage)
        assert not theirs.training
        for (name, a), (_, b) in zip(
            ours.state_dict().items(), theirs.state_dict().items(), strict=True
        ):
            assert torch.equal(a, b), name
    assert verify(tiny_folder) == []
    assert sorted(p.name for p in tiny_folder.iterdir()) == [
        "README.md", "codec.safetensors", "config.json", "decoder.safetensors",
        "vocoder.safetensors",
    ]  # fmt: skip


def test_half_precision_keeps_the_codec_fingerprint(tiny_bundle: Bundle, tmp_path: Path) -> None:
    half = tiny_bundle.save_pretrained(tmp_path / "half", torch.float16)
    _, _, name = load_codec(half)
    assert name == tiny_bundle.codec_fingerprint
    sizes = [sum(f.stat().st_size for f in d.glob("decoder.*")) for d in (half,)]
    full = tiny_bundle.save_pretrained(tmp_path / "full")
    assert sizes[0] < 0.7 * (full / "decoder.safetensors").stat().st_size


def test_missing_folder(tmp_path: Path) -> None:
    refused(tmp_path / "none", "there is no bundle")


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    refused(tmp_path / "x", "is a file")


def test_empty_folder(tmp_path: Path) -> None:
    refused(tmp_path, "has no config.json")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '"x"', "\ud800".encode("utf-8", "replace").decode()]
)
def test_broken_config(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    refused(folder, "config.json")


def test_newer_format(folder: Path) -> None:
    change(folder, format_version=99)
    refused(folder, "pip install --upgrade")


def test_a_codec_of_the_first_generation(folder: Path) -> None:
    codec = json.loads((folder / "config.json").read_text())["codec"]
    codec["model"]["backbone"] = {
        "kind": "conv1d", "widths": [128, 384], "depths": [1, 4], "strides": [16], "kernel": 7,
        "expansion": 3, "latent": 128, "linear": True, "texture": {"controls": 2, "grain": True},
        "seams": {"width": 256, "reach": 4, "steady": 0.05},
    }  # fmt: skip
    change(folder, format_version=1, codec=codec)
    refused(folder, "made by an earlier version.*build the bundle again")


def test_unknown_key(folder: Path) -> None:
    change(folder, vocodre={})
    refused(folder, "unknown key 'vocodre'; did you mean 'vocoder'")


@pytest.mark.parametrize("stage", ["codec", "decoder", "vocoder"])
def test_missing_weights(folder: Path, stage: str) -> None:
    (folder / f"{stage}.safetensors").unlink()
    refused(folder, "is missing")


def test_truncated_weights(folder: Path) -> None:
    path = folder / "decoder.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    refused(folder, "truncated")


def test_weights_of_another_kind(folder: Path) -> None:
    change(folder, files={})
    (folder / "codec.safetensors").write_bytes(b"x" * 1000)
    refused(folder, "damaged or not a safetensors file")


def test_weights_of_another_stage(folder: Path) -> None:
    change(folder, files={})
    shutil.copy(folder / "vocoder.safetensors", folder / "codec.safetensors")
    refused(folder, "is missing")


def test_weights_of_another_size(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["decoder"]["model"]["width"] = 64
    change(folder, decoder=config["decoder"])
    refused(folder, "has the shape")


def test_stages_that_do_not_fit(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    other_mel = config["vocoder"] | {"mel": config["vocoder"]["mel"] | {"fmax": 7600.0}}
    change(folder, vocoder=other_mel)
    refused(folder, "another mel.*fmax")


def test_decoder_of_another_codec() -> None:
    with pytest.raises(BundleError, match="codes"):
        make_bundle(DiffsoundConfig.tiny(CodecConfig.tiny().rows, 8, 384))


def test_verify_finds_a_changed_byte(folder: Path) -> None:
    path = folder / "decoder.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert verify(folder) == [
        "decoder.safetensors is not the file that was saved (checksum differs)"
    ]


def test_a_save_that_fails_leaves_no_bundle(tiny_bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BundleError):
        tiny_bundle.save_pretrained(tmp_path / "file" / "bundle")


def test_defaults_are_bounded() -> None:
    with pytest.raises(ValueError, match="duration"):
        GenerationDefaults(duration=100)


def test_config_is_readable(tiny_folder: Path) -> None:
    assert read_config(tiny_folder).name == "tiny"


def test_a_header_with_line_breaks_is_refused_in_one_line(tmp_path: Path) -> None:
    header = json.dumps({"x": {"dtype": "\n", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "codec.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(BundleError, match="damaged") as refusal:
        load_weights(path)
    assert "\n" not in str(refusal.value)


def test_default_steps_are_no_more_than_the_decoder_has(folder: Path) -> None:
    """A bundle of a small decoder, with nothing said about steps, makes sounds as it is."""
    config = json.loads((folder / "config.json").read_text())
    timesteps = config["decoder"]["model"]["timesteps"]
    for defaults in ({}, {"num_inference_steps": 25}, {"num_inference_steps": None}):
        config["defaults"] = defaults | {"duration": 0.5}
        (folder / "config.json").write_text(json.dumps(config))
        bundle = Bundle.from_pretrained(folder)
        steps = bundle.config.defaults.num_inference_steps
        assert steps == (None if defaults.get("num_inference_steps", 25) is None else timesteps)
        assert len(TextToSound(bundle)("rain", seed=1)) == 1


def test_the_shipped_codec_keeps_the_fingerprint_its_decoder_was_trained_with() -> None:
    """A new setting of codecs must not rename the tokens of those that do not use it."""
    config = read_config(BUNDLED)
    assert load_codec(BUNDLED)[2] == config.decoder.codec_fingerprint
