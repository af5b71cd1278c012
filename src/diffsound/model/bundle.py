"""A model on disk: `config.json`, one safetensors file per stage, a model card.

    my-bundle/
      config.json            every constant that made it, and the checksum of every file
      codec.safetensors      decoder.safetensors      vocoder.safetensors
      captioner/             classifier/              judges of sounds, if it has them
      README.md              the model card
      coverage.safetensors   coverage.json   what it was trained on (optional)

Nothing is ever unpickled. A bundle whose stages do not fit each other is refused when it is
loaded, not heard as noise.
"""

from __future__ import annotations

import errno
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from diffsound.audio.mel import MelConfig, MelFrontEnd
from diffsound.codec.codec import Codec
from diffsound.codec.config import RETIRED
from diffsound.decoder import build_decoder
from diffsound.errors import BundleError, DiffsoundError, InputError
from diffsound.files import (
    atomic_files,
    atomic_write,
    member,
    open_regular,
    read_text,
    sha256,
    sweep,
)
from diffsound.judges import JudgeKind, describe_judge, judges_in, load_judge
from diffsound.judges.ranking import Matcher, load_matcher
from diffsound.model.config import (
    CONFIG_FILE,
    BundleConfig,
    CodecPart,
    FileInfo,
    check_fit,
    read_config,
    reason,
)
from diffsound.model.coverage import COVERAGE_FILES, Coverage
from diffsound.text.encoders import load_text_encoder
from diffsound.text.features import TextEncoder
from diffsound.vocoder import Vocoder, build_vocoder
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

CARD_FILE = "README.md"
_CHECKSUMS = "\n## Checksums\n\nSHA-256 of every file, as `sha256sum --check` reads them:\n\n"
STAGES = ("codec", "decoder", "vocoder")
RANKERS = ("matcher", "captioner")  # the judges that can choose, the better one first
BUNDLED = Path(__file__).parents[1] / "assets" / "small"


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
        stages = {
            stage: build_with(build, _load_stage(folder, stage, config), f"{folder.name}/{stage}")
            for stage, build in builders.items()
        }
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
        for stage in STAGES:
            state = getattr(self, stage).state_dict()
            save_weights(folder / f"{stage}.safetensors", state, dtype)
        names = [f"{stage}.safetensors" for stage in STAGES]
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


def check_ranks(source: str | Path | None) -> None:
    """Refuse a bundle that has no judge to choose among candidates with."""
    folder = resolve(source)
    if not any((folder / kind).is_dir() for kind in RANKERS):
        raise InputError(
            "this bundle has no matcher and no captioner to choose among candidates with; "
            "keep them all, or use a bundle that has one"
        )


def copy_bundle(source: Path, target: Path) -> None:
    """Copy the files a bundle's config lists, the config last, as a save would.

    Only regular files of the source are read, and nothing outside the target is written: both may
    come from a stranger.
    """
    config = read_config(source)
    try:
        for name in config.files:
            open_regular(member(source, name)).close()
        target.mkdir(parents=True, exist_ok=True)
        for name in (*config.files, CONFIG_FILE):
            place = target.resolve() / name
            if place.parent.resolve() != place.parent:
                raise OSError(errno.ELOOP, f"'{name}' goes through a link there")
            place.parent.mkdir(parents=True, exist_ok=True)
            with (
                open_regular(member(source, name)) as stream,
                atomic_write(place) as temporary,
                temporary.open("wb") as copy,
            ):
                shutil.copyfileobj(stream, copy)
    except OSError as error:
        raise BundleError(f"cannot copy {source} to {target}: {error.strerror}") from error


def verify(folder: str | Path) -> list[str]:
    """Check every file's checksum and that the bundle loads; return the problems found."""
    folder = resolve(folder)
    config = read_config(folder)
    problems = []
    for name, info in config.files.items():
        try:
            if sha256(member(folder, name)) != info.sha256:
                problems.append(f"{name} is not the file that was saved (checksum differs)")
        except FileNotFoundError:
            problems.append(f"{name} is missing")
        except OSError as error:
            problems.append(f"{name} cannot be read: {reason(error)}")
    if not config.files:
        problems.append(f"{CONFIG_FILE} lists no files")
    if not problems:
        try:
            for kind, judge in Bundle.from_pretrained(folder).judges.items():
                load_judge(kind, judge)
        except DiffsoundError as error:
            problems.append(str(error))
    return problems


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


def _load_stage(folder: Path, stage: str, config: BundleConfig) -> dict[str, Tensor]:
    name = f"{stage}.safetensors"
    _check_size(folder, name, config)
    return load_weights(_member(folder, name))


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


def _check_size(folder: Path, name: str, config: BundleConfig) -> None:
    info = config.files.get(name)
    path = _member(folder, name)
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
