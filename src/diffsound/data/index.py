"""The index.json of a prepared folder, and of the tokens and text features made from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from diffsound.audio.mel import MelConfig
from diffsound.config import Config
from diffsound.data.tar import write_error, write_json
from diffsound.errors import DataError

FORMAT = 1
NO_TOKEN = 2**16 - 1  # in the columns after the end of a clip's shorter variants


class ShardInfo(Config):
    """One tar file: how many clips, and the checksum it must have."""

    name: str
    clips: int
    seconds: float
    bytes: int
    sha256: str


class Rejected(Config):
    """A clip that is not in the shards, and why."""

    id: str
    reason: str


class Duplicates(Config):
    """Clips that sound the same; `correlation` is the lowest along the links that join them."""

    ids: tuple[str, ...]
    correlation: float


class ClipsIndex(Config):
    """What is in a prepared folder and how it was made."""

    format: int = FORMAT
    kind: Literal["clips"] = "clips"
    complete: bool
    source: str
    settings: dict[str, Any]
    shards: tuple[ShardInfo, ...] = ()
    clips: int = 0
    seconds: float = 0.0
    rejected: tuple[Rejected, ...] = ()
    notes: tuple[str, ...] = ()
    near_duplicates: tuple[Duplicates, ...] = ()

    @property
    def mel(self) -> MelConfig:
        """The mel front end the folder was prepared for."""
        return MelConfig.model_validate(self.settings["mel"])


class TokensIndex(Config):
    """Tokens of a prepared folder's clips under one codec."""

    format: int = FORMAT
    kind: Literal["tokens"] = "tokens"
    complete: bool
    fingerprint: str
    rows: int
    codebook_size: int
    time_stride: int
    mel: MelConfig
    variants: int
    seconds: float | None
    speed: float = 0.0
    shards: tuple[ShardInfo, ...] = ()


class TextIndex(Config):
    """Text features of a prepared folder's captions under one encoder."""

    format: int = FORMAT
    kind: Literal["text"] = "text"
    complete: bool
    fingerprint: str
    dim: int
    encoder: dict[str, Any]
    shards: tuple[ShardInfo, ...] = ()


IndexT = TypeVar("IndexT", ClipsIndex, TokensIndex, TextIndex)


def read_index(model: type[IndexT], folder: str | Path) -> IndexT | None:
    """The folder's index; None when there is none; a damaged or newer one is refused."""
    path = Path(folder) / "index.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}; prepare the folder again") from error
    found = content.get("format") if isinstance(content, dict) else None
    if isinstance(found, int) and found > FORMAT:
        raise DataError(
            f"{path} has format {found}, newer than the {FORMAT} this version reads; "
            "update diffsound"
        )
    try:
        return model.model_validate(content)
    except ValidationError as error:
        key = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise DataError(
            f"{path} is damaged or of another kind (at '{key}'); prepare the folder again"
        ) from error


def write_index(index: ClipsIndex | TokensIndex | TextIndex, folder: str | Path) -> None:
    path = Path(folder) / "index.json"
    try:
        write_json(path, index.model_dump(mode="json"))
    except OSError as error:
        raise write_error(path, error) from error


def check_same_settings(old: dict[str, Any], new: dict[str, Any], folder: str | Path) -> None:
    """Refuse to mix settings in one folder; the message names the first one that changed."""
    flat_old, flat_new = _flat(old), _flat(new)
    for key in sorted(flat_old.keys() | flat_new.keys()):
        if flat_old.get(key) != flat_new.get(key):
            raise DataError(
                f"{folder} was made with {key}={flat_old.get(key)!r}, now {key}="
                f"{flat_new.get(key)!r}; use the same settings or another --out"
            )


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = list(value) if isinstance(value, tuple) else value
    return flat
