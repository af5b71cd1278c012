"""A model on disk: `config.json`, one safetensors file per stage, a model card.

    my-bundle/
      config.json            every constant that made it, and the checksum of every file
      codec.safetensors      decoder.safetensors      vocoder.safetensors
      captioner/             classifier/              judges of sounds, if it has them: judges.py
      README.md              the model card
      coverage.safetensors   coverage.json   what it was trained on (optional): coverage.py

Nothing is ever unpickled. A bundle whose stages do not fit each other is refused when it is
loaded, not heard as noise.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from diffsound.audio.mel import MelConfig, MelFrontEnd
from diffsound.codec.codec import Codec
from diffsound.codec.config import CodecConfig
from diffsound.config import Config, parse_config
from diffsound.coverage import COVERAGE_FILES, Coverage
from diffsound.decoder.ar import ARDecoder
from diffsound.decoder.build import build_decoder
from diffsound.decoder.config import DecoderConfig
from diffsound.decoder.contract import SamplerName
from diffsound.decoder.diffsound import Diffsound
from diffsound.errors import BundleError, ConfigError
from diffsound.files import atomic_write, sha256
from diffsound.judges import JudgeKind, describe_judge, judges_in, load_judge
from diffsound.text.config import TextEncoderConfig
from diffsound.text.encoders import load_text_encoder
from diffsound.text.features import TextEncoder
from diffsound.vocoder import Vocoder, build_vocoder
from diffsound.vocoder.config import VocoderConfig
from diffsound.weights import fingerprint, load_into, load_weights, save_weights

FORMAT_VERSION = 1
CONFIG_FILE = "config.json"
CARD_FILE = "README.md"
STAGES = ("codec", "decoder", "vocoder")
BUNDLED = Path(__file__).parent / "assets" / "small"


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


class GenerationDefaults(Config):
    """What a generation uses where the caller says nothing."""

    duration: float = Field(default=5.0, ge=0.5, le=30.0)
    sampler: SamplerName = "ancestral"
    num_inference_steps: int | None = 25
    guidance_scale: float = 1.0
    guided_share: float = Field(default=1.0, ge=0.0, le=1.0)
    temperature: float = 1.0
    truncation: float = 1.0
    top_k: int | None = None
    remask: float = 0.0
    best_of: int = Field(default=1, ge=1, le=100)  # more than one needs a matcher
    chosen_after: float = Field(default=1.0, ge=0.0, le=1.0)
    layered: bool = False  # scenes are mixed of sounds made one by one: layers.py
    level: float | None = Field(default=None, ge=-60.0, le=0.0)  # dB; None: as it is drawn
    backend: Literal["torch", "int8"] = "torch"  # who runs the networks on a CPU: stages.py


class FileInfo(Config):
    """Size and checksum of one file of the bundle."""

    bytes: int
    sha256: str


class BundleConfig(Config):
    """`config.json`."""

    format_version: int = FORMAT_VERSION
    name: str
    text_encoder: TextEncoderConfig
    codec: CodecPart
    decoder: DecoderPart
    vocoder: VocoderPart
    defaults: GenerationDefaults = GenerationDefaults()
    files: dict[str, FileInfo] = Field(default_factory=dict)


@dataclass(frozen=True)
class Bundle:
    """The four stages, loaded, frozen and in evaluation mode.

    judges: folders of the captioner and classifier that go with it (exports of runs or of bundles).
    """

    config: BundleConfig
    codec: Codec
    decoder: Diffsound | ARDecoder
    vocoder: Vocoder
    card: str = ""
    judges: Mapping[JudgeKind, Path] = field(default_factory=dict)
    coverage: Coverage | None = None

    def __post_init__(self) -> None:
        _check_fit(self.config)
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
        stages: dict[str, nn.Module] = {
            "codec": Codec(config.codec.model),
            "decoder": build_decoder(config.decoder.model),
            "vocoder": build_vocoder(config.vocoder.model, config.vocoder.mel),
        }
        for name, module in stages.items():
            _check_size(folder, f"{name}.safetensors", config)
            load_into(module, load_weights(folder / f"{name}.safetensors"), f"{folder.name}/{name}")
        card = folder / CARD_FILE
        return cls(
            config=config,
            card=card.read_text(encoding="utf-8") if card.exists() else "",
            judges=judges_in(folder),
            coverage=_load_coverage(folder, config),
            **stages,  # type: ignore[arg-type]
        )

    def save_pretrained(self, folder: str | Path, dtype: torch.dtype = torch.float32) -> Path:
        """Write the bundle, judges included; float16 halves its size."""
        from diffsound.training.export import copy_export

        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BundleError(f"cannot make the folder {folder}: {error.strerror}") from error
        for stage in STAGES:
            state = getattr(self, stage).state_dict()
            save_weights(folder / f"{stage}.safetensors", state, dtype)
        card = self.card or f"# {self.config.name}\n\nNo model card was given.\n"
        with atomic_write(folder / CARD_FILE) as temporary:
            temporary.write_text(card, encoding="utf-8")
        names = [*(f"{stage}.safetensors" for stage in STAGES), CARD_FILE]
        for kind, source in self.judges.items():
            written = copy_export(source, kind, folder / kind, dtype)
            names += sorted(f"{kind}/{path.name}" for path in written.iterdir())
        if self.coverage is not None:
            self.coverage.save(folder)
            names += COVERAGE_FILES
        files = {
            name: FileInfo(bytes=(folder / name).stat().st_size, sha256=sha256(folder / name))
            for name in names
        }
        # The config comes last: a bundle without it is no bundle, so a killed save is never loaded.
        with atomic_write(folder / CONFIG_FILE) as temporary:
            config = self.config.model_copy(update={"files": files})
            temporary.write_text(config.model_dump_json(indent=2) + "\n", encoding="utf-8")
        return folder


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


def copy_bundle(source: Path, target: Path) -> None:
    """Copy the files a bundle's config lists, the config last, as a save would."""
    config = read_config(source)
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name in (*config.files, CONFIG_FILE):
            (target / name).parent.mkdir(exist_ok=True)
            with atomic_write(target / name) as temporary:
                shutil.copyfile(source / name, temporary)
    except OSError as error:
        raise BundleError(f"cannot copy {source} to {target}: {error.strerror}") from error


def read_config(folder: str | Path) -> BundleConfig:
    """Read and validate a bundle's `config.json`."""
    path = Path(folder) / CONFIG_FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BundleError(f"{folder} is not a bundle: it has no {CONFIG_FILE}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BundleError(f"{path} cannot be read: {error}") from error
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
    try:
        return parse_config(BundleConfig, data, source=str(path))
    except ConfigError as error:
        raise BundleError(str(error)) from error


def verify(folder: str | Path) -> list[str]:
    """Check every file's checksum and that the bundle loads; return the problems found."""
    folder = resolve(folder)
    config = read_config(folder)
    problems = []
    for name, info in config.files.items():
        path = folder / name
        if not path.exists():
            problems.append(f"{name} is missing")
        elif sha256(path) != info.sha256:
            problems.append(f"{name} is not the file that was saved (checksum differs)")
    if not config.files:
        problems.append(f"{CONFIG_FILE} lists no files")
    if not problems:
        for kind, judge in Bundle.from_pretrained(folder).judges.items():
            load_judge(kind, judge)
    return problems


def load_codec(source: str | Path | None = None) -> tuple[Codec, MelConfig, str]:
    """A bundle's codec alone, with its mel front end's settings and its fingerprint."""
    folder = resolve(source)
    part = read_config(folder).codec
    codec = Codec(part.model)
    load_into(codec, load_weights(folder / "codec.safetensors"), f"{folder.name}/codec")
    codec.eval().requires_grad_(False)
    return codec, part.mel, codec_fingerprint(part, codec)


def codec_fingerprint(part: CodecPart, codec: Codec) -> str:
    """A name for the tokens a codec gives: codecs that differ in their decoding only share it."""
    decoding = {"model": {"backbone": {"seams"}}}
    return fingerprint(part.model_dump(mode="json", exclude=decoding), codec.token_state())


def describe(folder: str | Path | None) -> dict[str, Any]:
    """What `diffsound bundle inspect` shows."""
    bundle = Bundle.from_pretrained(folder)
    config = bundle.config
    return {
        "name": config.name,
        "format_version": config.format_version,
        "text_encoder": config.text_encoder.model_dump(mode="json"),
        "mel": config.codec.mel.model_dump(mode="json"),
        "codec": {
            "rows": bundle.codec.rows,
            "codebook_size": bundle.codec.codebook_size,
            "time_stride": bundle.codec.time_stride,
            "fingerprint": bundle.codec_fingerprint,
        },
        "decoder": config.decoder.model.model_dump(mode="json"),
        "vocoder": config.vocoder.model.model_dump(mode="json"),
        "defaults": config.defaults.model_dump(mode="json"),
        "parameters": bundle.parameters(),
        "known_captions": 0 if bundle.coverage is None else len(bundle.coverage.captions),
        "bytes": sum(info.bytes for info in config.files.values()),
    } | {kind: describe_judge(kind, judge) for kind, judge in bundle.judges.items()}


def _check_fit(config: BundleConfig) -> None:
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


def _load_coverage(folder: Path, config: BundleConfig) -> Coverage | None:
    """What the bundle knows of its training captions, if it lists any."""
    if COVERAGE_FILES[0] not in config.files:
        return None
    for name in COVERAGE_FILES:
        _check_size(folder, name, config)
    coverage = Coverage.load(folder)
    if coverage.vectors.shape[1] != config.decoder.model.text_dim:
        raise BundleError(f"{folder / COVERAGE_FILES[0]} is of another text encoder")
    return coverage


def _check_size(folder: Path, name: str, config: BundleConfig) -> None:
    info = config.files.get(name)
    path = folder / name
    if info is not None and path.exists() and path.stat().st_size != info.bytes:
        raise BundleError(
            f"{path} has {path.stat().st_size} bytes instead of {info.bytes}: "
            "the file is truncated or replaced, fetch the bundle again"
        )


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
    try:
        return Path(
            snapshot_download(hub_id, allow_patterns=["*.json", "*.safetensors", CARD_FILE])
        )
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BundleError(
            f"there is no bundle at {hub_id}, in a folder or hub: {reason}"
        ) from error
