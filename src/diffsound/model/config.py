"""A bundle's `config.json`: every constant that made it, and whether its parts fit each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator

from diffsound.audio.mel import MelConfig
from diffsound.codec.config import CodecConfig
from diffsound.config import Config, parse_config
from diffsound.decoder.config import DecoderConfig
from diffsound.errors import BundleError, ConfigError
from diffsound.files import is_member_name, member, read_json, settle
from diffsound.generation.settings import GenerationDefaults
from diffsound.text.features import TextEncoderConfig
from diffsound.vocoder import VocoderConfig

FORMAT_VERSION = 2  # since 2 the defaults have every setting of a generation
CONFIG_FILE = "config.json"


class CodecPart(Config):
    """The codec and the mel it was trained on."""

    model: CodecConfig
    mel: MelConfig


class DecoderPart(Config):
    """The token decoder and the codec whose tokens it speaks."""

    model: DecoderConfig
    codec_fingerprint: str | None = None


class VocoderPart(Config):
    """The vocoder and the mel it was trained on."""

    model: VocoderConfig
    mel: MelConfig


class FileInfo(Config):
    """Size and checksum of one file of the bundle."""

    bytes: int = Field(ge=0, lt=2**63)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class BundleConfig(Config):
    """`config.json`."""

    format_version: int = FORMAT_VERSION
    name: str
    text_encoder: TextEncoderConfig
    codec: CodecPart
    decoder: DecoderPart
    vocoder: VocoderPart
    defaults: GenerationDefaults = Field(default=GenerationDefaults(), validate_default=True)
    files: dict[str, FileInfo] = Field(default_factory=dict)

    @field_validator("files")
    @classmethod
    def _stay_inside(cls, files: dict[str, FileInfo]) -> dict[str, FileInfo]:
        for name in files:
            if not is_member_name(name):
                raise ValueError("a bundle lists files of its own folder only")
        return files

    @field_validator("defaults")
    @classmethod
    def _clamp(cls, defaults: GenerationDefaults, info: ValidationInfo) -> GenerationDefaults:
        """No more default steps than the decoder has: a small one has fewer than the usual 25."""
        most = getattr(getattr(info.data.get("decoder"), "model", None), "timesteps", None)
        steps = min(defaults.num_inference_steps or 0, most or 0)
        return defaults.model_copy(update={"num_inference_steps": steps}) if steps else defaults


def read_config(folder: str | Path) -> BundleConfig:
    """Read and validate a bundle's `config.json`."""
    path = Path(folder) / CONFIG_FILE
    try:
        settle(folder)
        data = read_json(member(folder, CONFIG_FILE))
    except FileNotFoundError:
        raise BundleError(f"{folder} is not a bundle: it has no {CONFIG_FILE}") from None
    except (OSError, ValueError) as error:
        raise BundleError(f"{path} cannot be read: {reason(error)}") from error
    if not isinstance(data, dict):
        raise BundleError(f"{path} does not hold a bundle's configuration")
    version = data.get("format_version")
    if not isinstance(version, int) or version < 1:
        raise BundleError(f"{path} names no valid format version")
    if version > FORMAT_VERSION:
        raise BundleError(
            f"{folder} has format {version}, this diffsound reads up to {FORMAT_VERSION}: "
            "pip install --upgrade diffsound"
        )
    if _backbone(data) == "conv1d":
        raise BundleError(
            f"{folder} was made by an earlier version: this diffsound no longer reads its codec "
            "(backbone conv1d); build the bundle again, or use the version that made it"
        )
    try:
        # An older format is a part of this one: what it leaves out has its default.
        return parse_config(BundleConfig, data | {"format_version": FORMAT_VERSION}, str(path))
    except ConfigError as error:
        raise BundleError(str(error)) from error


def _backbone(data: object) -> object:
    """The kind of the codec's backbone in a `config.json` that may hold anything."""
    for key in ("codec", "model", "backbone", "kind"):
        data = data.get(key) if isinstance(data, dict) else None
    return data


def check_fit(config: BundleConfig) -> None:
    """Refuse stages that were not made for each other."""
    codec, decoder = config.codec.model, config.decoder.model
    if config.codec.mel != config.vocoder.mel:
        ours, theirs = config.codec.mel.model_dump(), config.vocoder.mel.model_dump()
        key = next(name for name in ours if ours[name] != theirs[name])
        raise BundleError(
            f"the vocoder of '{config.name}' was trained on another mel than its codec "
            f"({key} {theirs[key]} against {ours[key]})"
        )
    pairs: Mapping[str, tuple[int, int]] = {
        "rows of tokens": (codec.rows, decoder.rows),
        "codes": (codec.codebook_size, decoder.codebook_size),
    }
    for what, (of_codec, of_decoder) in pairs.items():
        if of_codec != of_decoder:
            raise BundleError(
                f"the codec of '{config.name}' has {of_codec} {what}, its decoder {of_decoder}"
            )
    if codec.n_mels != config.codec.mel.n_mels:
        raise BundleError(
            f"the codec of '{config.name}' takes {codec.n_mels} mel bands, "
            f"its front end gives {config.codec.mel.n_mels}"
        )


def reason(error: Exception) -> str:
    """What went wrong, in one line."""
    text = getattr(error, "strerror", None) or str(error)
    return " ".join(text.split()) or type(error).__name__
