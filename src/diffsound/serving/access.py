"""Who may use the server and how much: API keys, requests a minute, seconds of sound a day."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from diffsound.errors import ConfigError
from diffsound.files import read_text
from diffsound.serving.errors import TooManyError
from diffsound.serving.settings import Limits
from diffsound.serving.telemetry import audit, log

RELOAD_SECONDS = 1.0  # between checks of the key file
SETTLED_SECONDS = 1.0  # since its last change, before it is read
MAX_KEY_FILE = 2**20  # bytes
MAX_CALLERS = 10_000  # callers whose allowances are remembered
DAY = 86_400.0


def read_key_file(path: Path) -> dict[str, str]:
    """The keys of a file and the names of their holders.

    One key a line, with an optional name after it; a line that starts with # is a comment. A key
    without a name goes by its fingerprint, so that no log ever has the key itself.
    """
    try:
        lines = read_text(path, limit=MAX_KEY_FILE).split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"cannot read the API keys in {path}: {reason}") from error
    keys: dict[str, str] = {}
    for line in lines:
        key, *name = line.split(maxsplit=1)[:2] if line.strip() else ("",)
        if key and not key.startswith("#"):
            keys[key] = name[0].strip() if name else _fingerprint(key)
    if not keys:
        # An empty file must not open the server to everyone.
        raise ConfigError(f"{path} has no API keys; put one on each line")
    return keys


class KeyRing:
    """The API keys; those of a file are read again when it has changed.

    A file that becomes unreadable or empty changes nothing: the last good keys stay valid. One that
    changed a moment ago may be half-written, and half a key must open nothing: it has to settle.
    """

    def __init__(self, keys: Iterable[str] = (), path: Path | None = None) -> None:
        self._fixed = {key: _fingerprint(key) for key in keys}
        self._path = path
        self._state = self._file_state()
        self._looked_at = time.monotonic()
        self._names = self._digests(read_key_file(path) if path else {})

    def __bool__(self) -> bool:
        return bool(self._names)

    def holder(self, key: str) -> str | None:
        """The name of a key's holder; None for a key that is not on the ring."""
        self._reload()
        given, found = _digest(key), None
        # All are compared, and by their hashes: the time taken says nothing about any key.
        for digest, name in self._names.items():
            if hmac.compare_digest(given, digest):
                found = name
        return found

    def _reload(self) -> None:
        now = time.monotonic()
        if self._path is None or now - self._looked_at < RELOAD_SECONDS:
            return
        self._looked_at = now
        state = self._file_state()
        if state == self._state or (state and 0 <= time.time() - state[0] / 1e9 < SETTLED_SECONDS):
            return
        self._state = state
        try:
            self._names = self._digests(read_key_file(self._path))
        except ConfigError as error:
            log("API keys not reloaded", logging.ERROR, reason=str(error))
        else:
            log("API keys reloaded", keys=len(self._names))
            audit("API keys reloaded", callers=sorted(self._names.values()))

    def _digests(self, keys: dict[str, str]) -> dict[bytes, str]:
        return {_digest(key): name for key, name in (self._fixed | keys).items()}

    def _file_state(self) -> tuple[int, ...] | None:
        try:
            found = None if self._path is None else self._path.stat()
        except OSError:
            return None
        return found and (found.st_mtime_ns, found.st_size, found.st_ino)


class Allowances:
    """What each caller has left: a bucket that fills steadily and that every request draws from."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._buckets: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def take_request(self, caller: str) -> None:
        """Count a request, or refuse it with a TooManyError."""
        if self._limits.rate is not None:
            message = f"more than {self._limits.rate:g} requests a minute"
            self._take("rate", caller, 1.0, max(1.0, self._limits.rate), 60.0, message)

    def take_sound(self, caller: str, seconds: float) -> None:
        """Count seconds of sound, or refuse them with a TooManyError."""
        if self._limits.quota is not None:
            message = f"more than {self._limits.quota:g} s of sound a day"
            self._take("quota", caller, seconds, self._limits.quota, DAY, message)

    def _take(
        self, kind: str, caller: str, amount: float, capacity: float, period: float, message: str
    ) -> None:
        now = time.monotonic()
        left, seen = self._buckets.pop((kind, caller), (capacity, now))
        left = min(capacity, left + (now - seen) * capacity / period)
        enough = amount <= left + 1e-9
        self._buckets[kind, caller] = (left - amount if enough else left, now)
        while len(self._buckets) > MAX_CALLERS:
            self._buckets.popitem(last=False)  # the one idle longest
        if not enough:
            wait = (min(amount, capacity) - left) * period / capacity
            raise TooManyError(message, max(1, math.ceil(wait)))


def caller_address(client: object) -> str:
    """The address a connection is counted under; for IPv6 the network, which has one owner."""
    host = client[0] if isinstance(client, tuple | list) and client else ""
    try:
        address = ipaddress.ip_address(str(host).partition("%")[0])
    except ValueError:
        return str(host)[:64]
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False).network_address)
    return str(address)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _fingerprint(key: str) -> str:
    return f"key-{_digest(key).hex()[:8]}"
