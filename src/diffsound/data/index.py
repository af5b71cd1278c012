"""The files of a prepared folder: tar shards, their sidecars, and index.json.

The same content gives the same bytes. `clips-000000.json` is the sidecar of `clips-000000.tar`: the
position of each member, so that it is read without a scan, a checksum, and notes of the maker. A
shard without its sidecar counts as missing.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from diffsound.audio.mel import MelConfig
from diffsound.config import Config, flat
from diffsound.errors import DataError
from diffsound.files import atomic_write, parse_json, read_json, sha256

# id -> suffix -> (offset, bytes) of the member `id.suffix`
Members = dict[str, dict[str, tuple[int, int]]]


def write_shard(
    path: str | Path,
    entries: Iterable[tuple[str, Mapping[str, bytes]]],
    sidecar: Mapping[str, Any],
) -> dict[str, Any]:
    """Write (id, {suffix: bytes}) entries and their sidecar; return the sidecar."""
    path = Path(path)
    members: Members = {}
    try:
        with atomic_write(path) as temporary:
            with (
                temporary.open("wb") as stream,
                tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar,
            ):
                for key, files in entries:
                    members[key] = {}
                    for suffix, content in files.items():
                        info = tarfile.TarInfo(f"{key}.{suffix}")
                        info.size = len(content)
                        # tarfile advances the offset itself; the data starts one block later.
                        members[key][suffix] = (tar.offset + tarfile.BLOCKSIZE, len(content))
                        tar.addfile(info, io.BytesIO(content))
            size, digest = temporary.stat().st_size, sha256(temporary)
        info_json = {"bytes": size, "sha256": digest, "members": members, **sidecar}
        write_json(sidecar_path(path), info_json)
    except OSError as error:
        raise write_error(path, error) from error
    return info_json


def read_sidecar(path: str | Path) -> dict[str, Any] | None:
    """The sidecar of a complete shard; None if either is missing or they do not match."""
    path = Path(path)
    try:
        info = read_json(sidecar_path(path), limit=2**30)
        if path.stat().st_size != info["bytes"]:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return dict(info)


def sidecar_path(path: str | Path) -> Path:
    return Path(path).with_suffix(".json")


def read_span(path: str | Path, span: tuple[int, int]) -> bytes:
    """The bytes at (offset, length).

    The file is opened each time, which costs microseconds. Callers hold no handles, so they can be
    pickled, forked and used from threads.
    """
    try:
        with open(path, "rb") as stream:
            stream.seek(span[0])
            content = stream.read(span[1])
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    if len(content) != span[1]:
        raise DataError(f"{path} is shorter than its index says; prepare it again")
    return content


def read_fields(path: str | Path, span: tuple[int, int]) -> dict[str, Any]:
    """The JSON object at (offset, length) of a shard."""
    try:
        return dict(parse_json(read_span(path, span)))
    except (ValueError, TypeError) as error:
        raise DataError(f"a clip's JSON in {path} is damaged; prepare it again") from error


def write_json(path: str | Path, content: Mapping[str, Any]) -> None:
    """Write JSON, whole or not at all, with keys in the given order."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(json_bytes(content))


def json_bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")


def write_error(path: str | Path, error: OSError) -> DataError:
    """One line for a full disk, a read-only folder and the like."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    return DataError(
        f"cannot write {path}: {reason}; what is finished is kept, run again to continue"
    )


FORMAT = 1
NO_TOKEN = 2**16 - 1  # fills the columns after the end of a clip's shorter variants


class ShardInfo(Config):
    """One tar file: its size, number of clips and checksum."""

    name: str
    clips: int
    seconds: float
    bytes: int
    sha256: str


class Rejected(Config):
    """A clip that was left out, and why."""

    id: str
    reason: str


class Duplicates(Config):
    """Clips that sound the same; `correlation` is the weakest link between them."""

    ids: tuple[str, ...]
    correlation: float


class ClipsIndex(Config):
    """The content of a prepared folder and how it was made."""

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
    """The folder's index, None if there is none; a damaged or newer one is refused."""
    path = Path(folder) / "index.json"
    try:
        content = read_json(path, limit=2**30)
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
    """Refuse to mix settings in one folder; the message names the first that changed."""
    flat_old, flat_new = flat(old), flat(new)
    for key in sorted(flat_old.keys() | flat_new.keys()):
        if flat_old.get(key) != flat_new.get(key):
            raise DataError(
                f"{folder} was made with {key}={flat_old.get(key)!r}, now {key}="
                f"{flat_new.get(key)!r}; use the same settings or another --out"
            )
