"""Files appear whole or not at all, and only regular files are read."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any

from diffsound.errors import InputError

# Far above any config, manifest or list of prompts; a larger file is a mistake or an attack.
MAX_TEXT_BYTES = 64 * 2**20
MAX_JSON_DEPTH = 64
TEMPORARY = ".tmp-"  # how the names of unfinished files and folders begin
REPLACING = ".replacing"  # a folder of finished files on the way to their places


@contextmanager
def atomic_write(target: str | Path) -> Iterator[Path]:
    """Yield a path beside `target` to write to; rename it onto the target on success.

    The temporary name keeps the target's suffix, since many writers choose a format by it. On any
    exception (a full disk and Ctrl-C included) the temporary file is removed and the target is
    left as it was.
    """
    target = Path(target)
    handle, name = tempfile.mkstemp(
        dir=target.parent, prefix=f"{TEMPORARY}{target.stem[:40]}-", suffix=target.suffix
    )
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        sync(temporary)
        make_public(temporary)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(target.parent)  # until then a power cut can undo the renaming


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """An empty folder that replaces `target` when the block ends; a failure leaves no trace."""
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f"{TEMPORARY}{target.name}-"))
    retired = target.parent / f"{TEMPORARY}{target.name}-old"
    try:
        yield temporary
        for path in temporary.iterdir():
            make_public(path)
            sync(path)
        temporary.chmod(0o755)
        sync(temporary)
        shutil.rmtree(retired, ignore_errors=True)
        if target.exists():
            target.rename(retired)
        temporary.rename(target)
        sync(target.parent)
        shutil.rmtree(retired, ignore_errors=True)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@contextmanager
def atomic_files(folder: Path) -> Iterator[Path]:
    """An empty folder; when the block ends, its files replace those of `folder`, all or none.

    It is decided when that folder is renamed: a writer killed before has changed nothing. What one
    killed later has left to do is done by `settle`, which readers call first.
    """
    settle(folder)
    temporary = Path(tempfile.mkdtemp(dir=folder, prefix=TEMPORARY))
    try:
        yield temporary
        for path in (temporary, *temporary.rglob("*")):
            if path.is_file():
                make_public(path)
            sync(path)
        temporary.rename(folder / REPLACING)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync(folder)
    settle(folder)


def settle(folder: str | Path) -> None:
    """Finish what an interrupted `atomic_files` had decided; nothing goes through a link."""
    ready = Path(folder) / REPLACING
    if not ready.is_dir():
        return
    for path in [path for path in ready.rglob("*") if not path.is_dir()]:
        name = path.relative_to(ready).as_posix()
        target = member(folder, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # another reader has just moved it
            member(folder, f"{REPLACING}/{name}").replace(target)
        sync(target.parent)
    shutil.rmtree(ready, ignore_errors=True)


def sweep(folder: str | Path, older_than: float = 0.0) -> None:
    """Remove what killed writers left in a folder.

    older_than: seconds; for a folder in which others may be writing, more than a file can take.
    """
    for path in Path(folder).glob(f"{TEMPORARY}*"):
        with suppress(OSError):  # another writer has just renamed it
            if time.time() - path.stat().st_mtime < older_than:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def sync(path: Path) -> None:
    """Put a file, or the names in a folder, on the disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no folders
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_public(path: Path) -> None:
    """Give a private file (of mkstemp, of safetensors) the permissions a plain open() would."""
    path.chmod(0o666 & ~_umask())


def open_regular(path: str | Path) -> BufferedReader:
    """Open a file for reading; a folder, pipe, socket or device is an OSError.

    Never blocks: opening a named pipe would wait for a writer, reading a device may never end.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_text(path: str | Path, encoding: str = "utf-8", limit: int = MAX_TEXT_BYTES) -> str:
    """The text of a regular file of at most `limit` bytes; an OSError or UnicodeDecodeError."""
    with open_regular(path) as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit >> 20} MiB", str(path))
    return data.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def parse_json(text: str | bytes) -> Any:
    """A JSON value; whatever is wrong with it is a ValueError.

    Nesting is limited, because code that walks the value would otherwise exhaust the stack, and so
    are whole numbers, which no array or float could hold.
    """
    try:
        value = json.loads(text, parse_int=_parse_int)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        groups = [
            one.values() if isinstance(one, dict) else one
            for one in level
            if isinstance(one, dict | list)
        ]
        level = [one for group in groups for one in group]
        if not level:
            return value
    raise ValueError("it is nested too deeply")


def _parse_int(digits: str) -> int:
    if len(digits) > 20:  # more than 64 bits
        raise ValueError(f"the number {digits[:20]}… is too large")
    return int(digits)


def read_json(path: str | Path, limit: int = MAX_TEXT_BYTES) -> Any:
    """The value in a JSON file; an OSError or a ValueError (bad UTF-8 is one) if it has none."""
    return parse_json(read_text(path, limit=limit))


def is_member_name(name: str) -> bool:
    """Whether `name` is a plain path below a folder: relative, without `..`, the same everywhere.

    Backslashes and colons are refused because Windows reads them as folders and drives.
    """
    return (
        bool(name)
        and name == str(PurePosixPath(name))
        and not name.startswith("/")
        and not any(part in ("..", ".") for part in name.split("/"))
        and not any(char in '\\:*?"<>|' or not char.isprintable() for char in name)
    )


def member(folder: str | Path, name: str) -> Path:
    """The path of a file that a folder's own listing names; an OSError if it leads elsewhere.

    A link anywhere below the folder is refused, whatever it points to. The only exception is the
    cache of a model hub, where every file of a snapshot is a link to a blob of the same model.
    """
    if not is_member_name(name):
        raise OSError(errno.EINVAL, f"'{name[:60]}' is not the name of a file inside it")
    root = Path(os.path.realpath(folder))
    path = root / name
    found = Path(os.path.realpath(path))
    in_hub = root.parent.name == "snapshots" and found.parent == root.parent.parent / "blobs"
    if found != path and not in_hub:
        raise OSError(errno.ELOOP, f"'{name}' goes through a link")
    return found


def write_text(target: str | Path, text: str, newline: str | None = None) -> None:
    """Write a UTF-8 text in one step."""
    with atomic_write(target) as temporary:
        temporary.write_text(text, encoding="utf-8", newline=newline)


def make_folder(folder: str | Path) -> Path:
    """The folder, created with its parents if necessary."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot create the folder {folder}: {error.strerror}; choose another one"
        ) from error
    return folder


def sha256(path: str | Path) -> str:
    """The SHA-256 of a regular file as hex."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
