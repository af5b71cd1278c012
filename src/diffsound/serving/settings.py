"""A server's settings: where it listens, what it loads, how much a caller may ask for."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

from pydantic import Field

from diffsound.config import Config

MEBIBYTE = 2**20
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class Limits(Config):
    """How much one request, one caller and all callers together may ask for.

    prompt_chars, duration, candidates, steps: of one request; the OpenAPI document says the same.
    work: seconds of sound drawn for one request: duration times candidates times takes per sound.
    queue: requests that wait; one more is refused with 429.
    timeout: seconds from a request's arrival to its last sound; also for a body to arrive.
    body_timeout: seconds without a byte before a body is given up.
    uploads: requests with an upload at the same time; one more is refused with 429.
    connections, connections_per_address: open at the same time; one more is refused with 503.
    answer_bytes: of all answers that are being made and sent; one more is refused with 429.
    head_timeout: seconds for a request's headers to arrive. write_timeout: seconds in which a
        client must take a mebibyte of its answer, or the rest of it.
    rate: requests a minute for each caller (an API key, or an address if there are no keys).
    quota: seconds of sound a day for each caller.
    """

    prompt_chars: int = Field(default=500, ge=1, le=2000)
    duration: float = Field(default=30.0, ge=0.5, le=30.0)
    candidates: int = Field(default=8, ge=1, le=100)
    steps: int = Field(default=200, ge=1, le=10_000)
    work: float = Field(default=960.0, gt=0)
    upload_bytes: int = Field(default=20 * MEBIBYTE, ge=1024)
    queue: int = Field(default=32, ge=1)
    timeout: float = Field(default=120.0, gt=0)
    body_timeout: float = Field(default=30.0, gt=0)
    uploads: int = Field(default=16, ge=1)
    connections: int = Field(default=256, ge=1)
    connections_per_address: int = Field(default=64, ge=1)
    answer_bytes: int = Field(default=256 * MEBIBYTE, ge=MEBIBYTE)
    head_timeout: float = Field(default=10.0, gt=0)
    write_timeout: float = Field(default=60.0, gt=0)
    rate: float | None = Field(default=None, gt=0)
    quota: float | None = Field(default=None, gt=0)


class ServerSettings(Config):
    """One server.

    bundles: folders or hub ids; none means the bundle in the package. The first is the default.
    lanes: batches that run side by side; None means one per core on a CPU, one on an accelerator.
    max_batch: sounds made in one call of the model.
    api_keys, api_keys_file: if either is given, a request to the API must bring a key. The file
        has one key a line, with an optional name after it, and is read again when it changes.
    cors_origins: web origins besides the server's own that may use it.
    hosts: Host headers answered; None means any when the server is bound to a public address and
        only this machine's names otherwise, so that no web page can reach it by a name of its own.
    audit_log: a file that gets a line for every request to the API: who, what, how it ended.
    keep_bytes, keep_seconds: how much finished sound is kept for download and editing.
    shutdown_timeout: seconds that running work gets to finish after SIGTERM.
    """

    bundles: tuple[str, ...] = ()
    device: str = "cpu"
    host: str = "127.0.0.1"
    port: int = Field(default=8765, ge=0, le=65535)
    lanes: int | None = Field(default=None, ge=1, le=64)
    max_batch: int = Field(default=4, ge=1, le=256)
    limits: Limits = Limits()
    api_keys: tuple[str, ...] = ()
    api_keys_file: Path | None = None
    cors_origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] | None = None
    log_prompts: bool = False
    audit_log: Path | None = None
    web_page: bool = True
    keep_bytes: int = Field(default=128 * MEBIBYTE, ge=0)
    keep_seconds: float = Field(default=3600.0, gt=0)
    shutdown_timeout: float = Field(default=60.0, ge=0)

    @property
    def allowed_hosts(self) -> tuple[str, ...] | None:
        """Names the server answers to; None for any."""
        if self.hosts is not None:
            return self.hosts
        if not is_loopback(self.host):
            return None
        return tuple(dict.fromkeys((*LOCAL_NAMES, self.host.lower())))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to `host`, an address or a name."""
    try:
        found = [entry[4][0] for entry in socket.getaddrinfo(host, None)]
    except (OSError, UnicodeError):
        return False  # binding to it fails too, and says why
    addresses = [ipaddress.ip_address(str(text).partition("%")[0]) for text in found]
    return all((getattr(one, "ipv4_mapped", None) or one).is_loopback for one in addresses)
