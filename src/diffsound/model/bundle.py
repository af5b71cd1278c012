"""A model on disk: `config.json`, one safetensors file per stage, a model card.

    my-bundle/
      config.json            every constant that made it, and the checksum of every file
      codec.safetensors      decoder.safetensors      vocoder.safetensors
      captioner/             classifier/              judges of sounds, if it has them
      README.md              the model card
      coverage.safetensors   coverage.json   what it was trained on (optional)

Nothing is ever unpickled, and stages that do not fit each other are refused, not heard as noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor, nn

from diffsound.audio.mel import MelConfig, MelFrontEnd
from diffsound.codec.codec import Codec
from diffsound.codec.config import RETIRED, CodecConfig
from diffsound.config import Config, parse_config
from diffsound.decoder import build_decoder
from diffsound.decoder.config import DecoderConfig
from diffsound.errors import BundleError, ConfigError
from diffsound.files import (
    atomic_files,
    is_member_name,
    member,
    read_json,
    read_text,
    settle,
    sha256,
    sweep,
)
from diffsound.generation.settings import GenerationDefaults
from diffsound.judges import JudgeKind, judges_in
from diffsound.judges.ranking import Matcher, load_matcher
from diffsound.model.coverage import COVERAGE_FILES, Coverage
from diffsound.text.encoders import load_text_encoder
from diffsound.text.features import TextEncoder, TextEncoderConfig
from diffsound.vocoder import Vocoder, VocoderConfig, build_vocoder
from diffsound.weights import (
    CONFIG,
    MODEL,
    build_with,
    copy_export,
    fingerprint,
    load_weights,
    save_weights,
)

if TYPE_CHECKING:
    from diffsound.decoder.ar import ARDecoder
    from diffsound.decoder.diffsound import Diffsound

FORMAT_VERSION = 2  # since 2 the defaults have every setting of a generation
CONFIG_FILE = "config.json"
CARD_FILE = "README.md"
_CHECKSUMS = "\n## Checksums\n\nSHA-256 of every file, as `sha256sum --check` reads them:\n\n"
STAGES = ("codec", "decoder", "vocoder")
RANKERS = ("matcher", "captioner")  # the judges that can choose, the better one first
BUNDLED = Path(__file__).parents[1] / "assets" / "small"


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
        if not all(map(is_member_name, files)):
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
        mel, heard = config.codec.mel.model_dump(), config.vocoder.mel.model_dump()
        key = next(name for name in mel if mel[name] != heard[name])
        raise BundleError(
            f"the vocoder of '{config.name}' was trained on another mel than its codec "
            f"({key} {heard[key]} against {mel[key]})"
        )
    for what, ours, theirs in (
        ("rows of tokens", codec.rows, decoder.rows),
        ("codes", codec.codebook_size, decoder.codebook_size),
    ):
        if ours != theirs:
            raise BundleError(
                f"the codec of '{config.name}' has {ours} {what}, its decoder {theirs}"
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


@dataclass(frozen=True)
class Bundle:
    """The four stages, loaded, frozen and in evaluation mode.

    judges: folders of the captioner and classifier that go with it (exports of runs or of bundles).
    folder: where it was loaded from.
    """

    config: BundleConfig
    codec: Codec
    decoder: Diffsound | ARDecoder
    vocoder: Vocoder
    card: str = ""
    judges: Mapping[JudgeKind, Path] = field(default_factory=dict)
    coverage: Coverage | None = None
    folder: Path | None = None

    def __post_init__(self) -> None:
        check_fit(self.config)
        for stage in (self.codec, self.decoder, self.vocoder):
            stage.eval().requires_grad_(False)

    @cached_property
    def text_encoder(self) -> TextEncoder:
        """The frozen text encoder; loaded on first use."""
        encoder = load_text_encoder(self.config.text_encoder)
        wanted = self.config.decoder.model.text_dim
        if encoder.dim != wanted:
            raise BundleError(
                f"the text encoder gives {encoder.dim} numbers a token, the decoder of "
                f"'{self.config.name}' was trained on {wanted}; choose its own encoder"
            )
        return encoder

    @cached_property
    def mel_front_end(self) -> MelFrontEnd:
        return MelFrontEnd(self.config.codec.mel)

    @cached_property
    def matcher(self) -> Matcher:
        """The judge of how well sounds fit a text; loaded on first use."""
        matcher = load_matcher(self.judges["matcher"])
        if matcher.config.mel != self.config.codec.mel:
            raise BundleError(
                f"the matcher of '{self.config.name}' hears another mel than its codec's"
            )
        if matcher.config.text_fingerprint != self.text_encoder.fingerprint:
            raise BundleError(f"the matcher of '{self.config.name}' reads another text encoder")
        return matcher

    @property
    def sample_rate(self) -> int:
        return self.config.codec.mel.sample_rate

    @property
    def column_samples(self) -> int:
        """Samples under one column of the grid."""
        return self.config.codec.mel.hop_length * self.codec.time_stride

    def columns(self, samples: int) -> int:
        """Columns L' of the grid that cover this many samples."""
        return math.ceil(samples / self.column_samples)

    @torch.inference_mode()
    def mel(self, wave: Tensor) -> Tensor:
        """wave [samples] -> mel [1, n_mels, L] of whole columns, on the codec's device."""
        columns = self.columns(len(wave))
        missing = columns * self.column_samples - len(wave)
        padded = torch.nn.functional.pad(wave, (0, missing))
        # The centred transform gives one frame more than hops; the grid has no column for it.
        frames = columns * self.codec.time_stride
        device = next(self.codec.parameters()).device
        return self.mel_front_end(padded[None])[:, :, :frames].to(device)

    @torch.inference_mode()
    def tokenize(self, wave: Tensor) -> Tensor:
        """wave [samples] -> tokens [F', L'], L' = `columns(samples)`."""
        return self.codec.encode(self.mel(wave))[0]

    @property
    def codec_fingerprint(self) -> str:
        return codec_fingerprint(self.config.codec, self.codec)

    def parameters(self) -> dict[str, int]:
        """Parameter count of each stage."""
        return {
            stage: sum(p.numel() for p in getattr(self, stage).parameters()) for stage in STAGES
        }

    @classmethod
    def from_pretrained(cls, source: str | Path | None = None) -> Bundle:
        """Load a folder, a hub id, or (None) the bundle that ships with the package."""
        folder = resolve(source)
        config = read_config(folder)
        check_fit(config)
        builders: dict[str, Callable[[], nn.Module]] = {
            "codec": lambda: Codec(config.codec.model),
            "decoder": lambda: build_decoder(config.decoder.model),
            "vocoder": lambda: build_vocoder(config.vocoder.model, config.vocoder.mel),
        }
        stages = {}
        for stage, build in builders.items():
            state = load_weights(_checked(folder, f"{stage}.safetensors", config))
            stages[stage] = build_with(build, state, f"{folder.name}/{stage}")
        return cls(
            config=config,
            card=_read_card(folder),
            judges=_find_judges(folder, config),
            coverage=_load_coverage(folder, config),
            folder=folder,
            **stages,  # type: ignore[arg-type]
        )

    def save_pretrained(self, folder: str | Path, dtype: torch.dtype = torch.float32) -> Path:
        """Write the bundle, judges included; float16 halves its size.

        A bundle that is there already is replaced as a whole, whenever this may be killed.
        """
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            sweep(folder)
            with atomic_files(folder) as new:
                self._write(new, dtype)
        except OSError as error:
            problem = f"cannot write the bundle {folder}: {error.strerror or error}"
            raise BundleError(problem) from error
        return folder

    def _write(self, folder: Path, dtype: torch.dtype) -> None:
        names = [f"{stage}.safetensors" for stage in STAGES]
        for stage, name in zip(STAGES, names, strict=True):
            save_weights(folder / name, getattr(self, stage).state_dict(), dtype)
        for kind, source in self.judges.items():
            written = copy_export(source, kind, folder / kind, dtype)
            names += sorted(f"{kind}/{path.name}" for path in written.iterdir())
        if self.coverage is not None:
            self.coverage.save(folder)
            names += COVERAGE_FILES
        files = {name: _file_info(folder / name) for name in names}
        card = self.card or f"# {self.config.name}\n\nNo model card was given.\n"
        sums = "".join(f"{info.sha256}  {name}\n" for name, info in sorted(files.items()))
        (folder / CARD_FILE).write_text(f"{card}{_CHECKSUMS}```\n{sums}```\n", encoding="utf-8")
        files[CARD_FILE] = _file_info(folder / CARD_FILE)
        config = self.config.model_copy(update={"files": files})
        (folder / CONFIG_FILE).write_text(config.model_dump_json(indent=2) + "\n", encoding="utf-8")


def _file_info(path: Path) -> FileInfo:
    return FileInfo(bytes=path.stat().st_size, sha256=sha256(path))


def resolve(source: str | Path | None) -> Path:
    """The folder a bundle's name stands for."""
    if source is None:
        return BUNDLED
    folder = Path(source)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise BundleError(f"{folder} is a file; a bundle is a folder with a {CONFIG_FILE}")
    if _looks_like_hub_id(str(source)):
        return _download(str(source))
    raise BundleError(f"there is no bundle at {folder}")


def load_codec(source: str | Path | None = None) -> tuple[Codec, MelConfig, str]:
    """A bundle's codec alone, with its mel front end's settings and its fingerprint."""
    folder = resolve(source)
    part = read_config(folder).codec
    state = load_weights(_member(folder, "codec.safetensors"))
    codec = build_with(lambda: Codec(part.model), state, f"{folder.name}/codec")
    codec.eval().requires_grad_(False)
    return codec, part.mel, codec_fingerprint(part, codec)


def codec_fingerprint(part: CodecPart, codec: Codec) -> str:
    """A name for the tokens a codec gives: codecs that differ in their decoding only share it."""
    config = part.model_dump(mode="json", exclude={"model": {"texture"}})
    config["model"]["quantizer"] |= RETIRED
    return fingerprint(config, codec.token_state())


def _load_coverage(folder: Path, config: BundleConfig) -> Coverage | None:
    """What the bundle knows of its training captions, if it lists any."""
    if COVERAGE_FILES[0] not in config.files:
        return None
    for name in COVERAGE_FILES:
        _checked(folder, name, config)
    coverage = Coverage.load(folder)
    if coverage.vectors.shape[1] != config.decoder.model.text_dim:
        raise BundleError(f"{folder / COVERAGE_FILES[0]} is of another text encoder")
    return coverage


def _find_judges(folder: Path, config: BundleConfig) -> dict[JudgeKind, Path]:
    """The folders of the judges it lists; nothing in any judge's may lead out of the bundle."""
    judges = judges_in(folder)
    for kind in judges:
        for name in (CONFIG, MODEL):
            _member(folder, f"{kind}/{name}")
    return {kind: judge for kind, judge in judges.items() if f"{kind}/{MODEL}" in config.files}


def _read_card(folder: Path) -> str:
    try:
        return read_text(member(folder, CARD_FILE)).partition(_CHECKSUMS)[0]
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        problem = f"the model card {folder / CARD_FILE} cannot be read: {reason(error)}"
        raise BundleError(problem) from error


def _member(folder: Path, name: str) -> Path:
    try:
        return member(folder, name)
    except OSError as error:
        raise BundleError(f"the bundle {folder} is refused: {reason(error)}") from error


def _checked(folder: Path, name: str, config: BundleConfig) -> Path:
    """A file of the bundle; one of another size than its config says is refused."""
    info, path = config.files.get(name), _member(folder, name)
    if info is not None and path.exists() and path.stat().st_size != info.bytes:
        raise BundleError(
            f"{path} has {path.stat().st_size} bytes instead of {info.bytes}: "
            "the file is truncated or replaced, fetch the bundle again"
        )
    return path


def _looks_like_hub_id(source: str) -> bool:
    owner, slash, name = source.partition("/")
    return bool(slash and owner and name) and "/" not in name and not owner.startswith((".", "~"))


def _download(hub_id: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise BundleError(
            f"there is no folder {hub_id}, and reading it from a hub needs: "
            "pip install huggingface_hub"
        ) from None
    patterns = ["*.json", "*.safetensors", CARD_FILE]
    try:
        return Path(snapshot_download(hub_id, allow_patterns=patterns))
    except Exception as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        problem = f"there is no bundle at {hub_id}, in a folder or hub: {said}"
        raise BundleError(problem) from error
