"""Files appear whole or not at all."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(target: str | Path) -> Iterator[Path]:
    """Yield a path beside `target` to write to; rename it onto the target on success.

    The temporary name keeps the target's suffix, since many writers choose a format by it. On any
    exception (a full disk and Ctrl-C included) the temporary file is removed and the target is
    left as it was.
    """
    target = Path(target)
    handle, name = tempfile.mkstemp(
        dir=target.parent, prefix=f".{target.stem[:40]}-", suffix=target.suffix
    )
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        make_public(temporary)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def make_public(path: Path) -> None:
    """Give a private file (of mkstemp, of safetensors) the permissions a plain open() would."""
    path.chmod(0o666 & ~_umask())


def sha256(path: str | Path) -> str:
    """The file's SHA-256 as hex."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
