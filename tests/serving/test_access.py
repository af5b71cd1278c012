"""API keys, their rotation, allowances and the audit log."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from diffsound.errors import ConfigError
from diffsound.generation.pipeline import TextToSound
from diffsound.serving import access
from diffsound.serving.access import Allowances, KeyRing, caller_address, read_key_file
from diffsound.serving.errors import TooManyError
from diffsound.serving.settings import Limits
from diffsound.serving.telemetry import AUDIT, JsonFormatter
from serving_support import HOST, make_app, wait_ready

BODY = {"prompt": "rain", "duration": 0.5, "seed": 1}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Time that passes when told to."""

    class Clock:
        now = 1000.0

        def monotonic(self) -> float:
            return self.now

        def time(self) -> float:
            return self.now + 10

    clock = Clock()
    monkeypatch.setattr(access, "time", clock)
    return clock


def settle(file: Path, clock: Any) -> None:
    """As if the file had been changed a while ago."""
    clock.now += 2
    if file.exists():
        os.utime(file, (clock.now, clock.now))


def test_a_key_file_has_keys_names_and_comments(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\none\n\n two  the studio \n")
    keys = read_key_file(file)
    assert list(keys) == ["one", "two"]
    assert keys["two"] == "the studio"
    assert keys["one"].startswith("key-")
    assert "one" not in keys["one"]
    file.write_text("# nothing\n\n")
    with pytest.raises(ConfigError, match="no API keys"):
        read_key_file(file)
    with pytest.raises(ConfigError, match="cannot read"):
        read_key_file(tmp_path / "none")
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not text"):
        read_key_file(file)


def test_keys_rotate_when_the_file_changes(tmp_path: Path, clock: Any) -> None:
    file = tmp_path / "keys"
    file.write_text("old ann\n")
    ring = KeyRing(("fixed",), file)
    assert ring.holder("old") == "ann"
    assert ring.holder("new") is None
    file.write_text("old ann\nnew ann\n")
    settle(file, clock)
    assert ring.holder("new") == "ann"
    assert ring.holder("old") == "ann"
    file.write_text("new ann\n")
    settle(file, clock)
    assert ring.holder("old") is None
    assert ring.holder("fixed") is not None


@pytest.mark.parametrize("broken", [b"", b"\n\n", b"\xff\xff", None])
def test_a_broken_key_file_changes_nothing(
    tmp_path: Path, clock: Any, broken: bytes | None
) -> None:
    """Neither are the keys lost nor is the server open to all while a file is being written."""
    file = tmp_path / "keys"
    file.write_text("old ann\n")
    ring = KeyRing((), file)
    if broken is None:
        file.unlink()
    else:
        file.write_bytes(broken)
    settle(file, clock)
    assert ring.holder("old") == "ann"
    assert ring.holder("") is None
    assert ring
    file.write_text("new ann\n")
    settle(file, clock)
    assert ring.holder("old") is None
    assert ring.holder("new") == "ann"


def test_half_a_key_opens_nothing(tmp_path: Path, clock: Any) -> None:
    """An editor or a copy may be caught in the middle of writing the file."""
    file = tmp_path / "keys"
    file.write_text("old ann\n")
    ring = KeyRing((), file)
    for written in ("n", "new-s", "new-secret ann\n"):
        file.write_text(written)
        clock.now += 2
        os.utime(file, (clock.time(), clock.time()))
        assert ring.holder(written.split()[0]) is None
        assert ring.holder("old") == "ann"
    settle(file, clock)
    assert ring.holder("new-secret") == "ann"
    assert ring.holder("old") is None


def test_a_key_file_that_becomes_a_pipe_does_not_block(tmp_path: Path, clock: Any) -> None:
    file = tmp_path / "keys"
    file.write_text("old ann\n")
    ring = KeyRing((), file)
    file.unlink()
    os.mkfifo(file)
    settle(file, clock)
    assert ring.holder("old") == "ann"
    with pytest.raises(ConfigError, match="not a regular file"):
        KeyRing((), file)


def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes of one length, and as many comparisons for a good key as for a bad one."""
    compared: list[tuple[bytes, bytes]] = []
    real = access.hmac.compare_digest

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return real(a, b)

    monkeypatch.setattr(access.hmac, "compare_digest", compare)
    ring = KeyRing(("a", "b" * 100, "c"))
    for key in ("a", "c", "", "b" * 100, "ü" * 5000):
        compared.clear()
        ring.holder(key)
        assert len(compared) == 3
        assert {len(part) for pair in compared for part in pair} == {32}


def test_requests_a_minute(clock: Any) -> None:
    allowances = Allowances(Limits(rate=2))
    allowances.take_request("ann")
    allowances.take_request("ann")
    with pytest.raises(TooManyError) as caught:
        allowances.take_request("ann")
    assert caught.value.retry_after == 30
    allowances.take_request("bob")  # has an allowance of his own
    clock.now += 31
    allowances.take_request("ann")


def test_seconds_of_sound_a_day(clock: Any) -> None:
    allowances = Allowances(Limits(quota=100))
    allowances.take_sound("ann", 60)
    with pytest.raises(TooManyError, match="100 s of sound a day"):
        allowances.take_sound("ann", 60)
    allowances.take_sound("ann", 40)  # a refusal costs nothing
    clock.now += access.DAY / 2
    allowances.take_sound("ann", 50)


def test_the_number_of_remembered_callers_is_limited(
    clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "MAX_CALLERS", 10)
    allowances = Allowances(Limits(rate=2))
    for number in range(1000):
        allowances.take_request(str(number))
    assert len(allowances._buckets) == 10


@pytest.mark.parametrize(
    ("client", "address"),
    [
        (("127.0.0.1", 5), "127.0.0.1"),
        (("::ffff:10.0.0.1", 5), "10.0.0.1"),
        (("2001:db8::1:2:3:4", 5, 0, 0), "2001:db8::"),
        (("2001:db8::9", 5, 0, 0), "2001:db8::"),
        (("testclient", 5), "testclient"),
        (None, ""),
    ],
)
def test_a_caller_is_counted_under_its_network(client: Any, address: str) -> None:
    assert caller_address(client) == address


def test_rates_and_quotas_are_429(pipeline: TextToSound) -> None:
    limits = Limits(rate=3, quota=1.1)
    app = make_app(pipeline, api_keys=("a", "b"), limits=limits)
    with TestClient(app, base_url=f"http://{HOST}") as c:
        wait_ready(c)
        ann, bob = {"X-API-Key": "a"}, {"Authorization": "Bearer b"}
        assert [c.post("/v1/generate", json=BODY, headers=ann).status_code for _ in "12"] == [
            200,
            200,
        ]
        over_quota = c.post("/v1/generate", json=BODY, headers=ann)
        assert over_quota.status_code == 429
        assert "s of sound a day" in over_quota.json()["detail"]
        assert int(over_quota.headers["retry-after"]) > 3600
        over_rate = c.post("/v1/generate", json=BODY, headers=ann)
        assert over_rate.status_code == 429
        assert "requests a minute" in over_rate.json()["detail"]
        assert 1 <= int(over_rate.headers["retry-after"]) <= 20
        # Looking costs nothing, and another key has its own allowance.
        assert c.get("/v1/bundles", headers=ann).status_code == 200
        assert c.post("/v1/generate", json=BODY, headers=bob).status_code == 200


def test_the_audit_log_says_who_asked_for_what(pipeline: TextToSound, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret-key the studio\n")
    path = tmp_path / "audit.log"
    handler = logging.FileHandler(path)
    handler.setFormatter(JsonFormatter())
    AUDIT.addHandler(handler)
    level = AUDIT.level
    AUDIT.setLevel(logging.INFO)
    try:
        app = make_app(pipeline, api_keys_file=keys)
        with TestClient(app, base_url=f"http://{HOST}") as c:
            wait_ready(c)
            good = {"Authorization": "Bearer secret-key", "X-Request-ID": "r1"}
            assert c.post("/v1/generate", json=BODY, headers=good).status_code == 200
            bad = {"Authorization": "Bearer stolen-key"}
            assert c.post("/v1/generate", json=BODY, headers=bad).status_code == 401
            c.get("/healthz")
    finally:
        AUDIT.removeHandler(handler)
        AUDIT.setLevel(level)
    text = path.read_text()
    made, denied = (json.loads(line) for line in text.splitlines())
    assert (made["caller"], made["status"], made["request_id"]) == ("the studio", 200, "r1")
    assert made["sound_seconds"] == 0.5
    assert made["path"] == "/v1/generate"
    assert (denied["status"], denied["address"]) == (401, "testclient")
    assert "secret-key" not in text
    assert "stolen-key" not in text
    assert "rain" not in text
