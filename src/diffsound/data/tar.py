"""Tar shards: the same content gives the same bytes, and members are read without a scan.

Beside `clips-000000.tar` stands `clips-000000.json`, the shard's sidecar: where each member lies,
checksum, and what the maker wants to remember. A shard without its sidecar counts as not made.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from diffsound.errors import DataError
from diffsound.files import atomic_write, sha256

# id -> suffix -> (offset, bytes) of the member `id.suffix`
Members = dict[str, dict[str, tuple[int, int]]]


def write_shard(
    path: str | Path,
    entries: Iterable[tuple[str, Mapping[str, bytes]]],
    sidecar: Mapping[str, Any],
) -> dict[str, Any]:
    """Write (id, {suffix: bytes}) entries and the sidecar beside them; return the sidecar."""
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
                        # tarfile counts the offset up itself; the data begins one block later.
                        members[key][suffix] = (tar.offset + tarfile.BLOCKSIZE, len(content))
                        tar.addfile(info, io.BytesIO(content))
            size, digest = temporary.stat().st_size, sha256(temporary)
        info_json = {"bytes": size, "sha256": digest, "members": members, **sidecar}
        write_json(sidecar_path(path), info_json)
    except OSError as error:
        raise write_error(path, error) from error
    return info_json


def read_sidecar(path: str | Path) -> dict[str, Any] | None:
    """The sidecar of a whole shard; None when the shard or the sidecar is missing or does not fit."""
    path = Path(path)
    try:
        info = json.loads(sidecar_path(path).read_text(encoding="utf-8"))
        if path.stat().st_size != info["bytes"]:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return dict(info)


def sidecar_path(path: str | Path) -> Path:
    return Path(path).with_suffix(".json")


def read_span(path: str | Path, span: tuple[int, int]) -> bytes:
    """The bytes at (offset, length). Opening anew each time costs microseconds and keeps callers
    free of shared handles, so they can be pickled, forked and used from threads."""
    try:
        with open(path, "rb") as stream:
            stream.seek(span[0])
            content = stream.read(span[1])
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    if len(content) != span[1]:
        raise DataError(f"{path} is shorter than its index says; prepare it again")
    return content


def write_json(path: str | Path, content: Mapping[str, Any]) -> None:
    """Write JSON whole or not at all, keys in the given order."""
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
