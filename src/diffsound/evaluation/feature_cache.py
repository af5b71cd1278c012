"""A cache of what the classifier made of a clip, addressed by the clip's content.

One SQLite file: safe under several processes, whole after a crash, and a million small rows are no
burden on the file system.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from diffsound.errors import DataError


class FeatureCache:
    """Rows of bytes by key; keys of another classifier or setting never meet."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(self.path, timeout=60.0, isolation_level=None)
            self._base.execute("PRAGMA journal_mode=WAL")
            self._base.execute("PRAGMA synchronous=NORMAL")
            self._base.execute("CREATE TABLE IF NOT EXISTS rows (key TEXT PRIMARY KEY, row BLOB)")
        except OSError as error:
            raise DataError(f"cannot use the feature cache {self.path}: {error}") from error
        except sqlite3.Error as error:
            raise self._damaged(error) from error

    def get(self, key: str) -> bytes | None:
        """The row of a key, or None."""
        try:
            found = self._base.execute("SELECT row FROM rows WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            raise self._damaged(error) from error
        return bytes(found[0]) if found else None

    def put(self, rows: Mapping[str, bytes]) -> None:
        """Keep rows, all or none of them."""
        try:
            self._base.execute("BEGIN")
            self._base.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?)", rows.items())
            self._base.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._damaged(error) from error

    def __len__(self) -> int:
        return int(self._base.execute("SELECT COUNT(*) FROM rows").fetchone()[0])

    def close(self) -> None:
        self._base.close()

    def __enter__(self) -> FeatureCache:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def _damaged(self, error: sqlite3.Error) -> DataError:
        return DataError(
            f"the feature cache {self.path} cannot be used ({error}); delete it, it is made again"
        )


def content_key(wave: np.ndarray, *context: str) -> str:
    """A key for float32 samples under a context (the classifier's fingerprint, the settings)."""
    digest = hashlib.sha256("\0".join(context).encode())
    digest.update(b"\0")
    digest.update(np.ascontiguousarray(wave, dtype=np.float32).tobytes())
    return digest.hexdigest()
