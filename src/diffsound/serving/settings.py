"""What a server may be told: where it listens, what it loads, how much it lets a caller ask for."""

from __future__ import annotations

from pydantic import Field

from diffsound.config import Config

MEBIBYTE = 2**20


class Limits(Config):
    """How much one request may ask for, and how many may wait.

    work: seconds of sound in one request, over all its candidates.
    queue: requests that wait; one more is refused with 429.
    timeout: seconds from a request's arrival to its last sound.
    body_timeout: seconds without a byte before an upload is given up.
    """

    prompt_chars: int = Field(default=500, ge=1, le=2000)
    duration: float = Field(default=30.0, ge=0.5, le=30.0)
    candidates: int = Field(default=8, ge=1, le=100)
    steps: int = Field(default=200, ge=1)
    work: float = Field(default=120.0, gt=0)
    upload_bytes: int = Field(default=20 * MEBIBYTE, ge=1024)
    queue: int = Field(default=32, ge=1)
    timeout: float = Field(default=120.0, gt=0)
    body_timeout: float = Field(default=30.0, gt=0)


class ServerSettings(Config):
    """One server.

    bundles: folders or hub ids; none means the bundle in the package. The first is the default.
    lanes: batches that run side by side; None means one per core on a CPU, one on an accelerator.
    max_batch: sounds made in one call of the model.
    api_keys: if there are any, a request to the API must bring one.
    cors_origins: web origins besides the server's own that may use it.
    hosts: Host headers answered; None means any when the server is bound to a public address and
        only this machine's names otherwise, so that no web page can reach it by a name of its own.
    keep_bytes, keep_seconds: how much finished sound is kept for download and editing.
    """

    bundles: tuple[str, ...] = ()
    device: str = "cpu"
    host: str = "127.0.0.1"
    port: int = Field(default=8765, ge=0, le=65535)
    lanes: int | None = Field(default=None, ge=1, le=64)
    max_batch: int = Field(default=4, ge=1, le=256)
    limits: Limits = Limits()
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] | None = None
    log_prompts: bool = False
    web_page: bool = True
    keep_bytes: int = Field(default=128 * MEBIBYTE, ge=0)
    keep_seconds: float = Field(default=3600.0, gt=0)
    shutdown_timeout: float = Field(default=60.0, ge=0)

    @property
    def allowed_hosts(self) -> tuple[str, ...] | None:
        """Names the server answers to; None for any."""
        if self.hosts is not None:
            return self.hosts
        return ("localhost", "127.0.0.1", "::1") if self.is_local else None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in ("localhost", "127.0.0.1", "::1")
