"""Who may use the server, how much, and what it says about it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from diffsound.pipeline import TextToSound
from diffsound.serving.logs import LOGGER, JsonFormatter
from diffsound.serving.settings import Limits, ServerSettings
from diffsound.serving.sounds import SoundStore
from diffsound.sound import Sound
from serving_support import HOST, WatchedPipeline, make_app, wait_ready

BODY = {"prompt": "rain", "duration": 0.5, "seed": 1}


@pytest.fixture
def log_lines() -> Iterator[Any]:
    """The JSON lines logged during the test."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    LOGGER.addHandler(handler)
    level = LOGGER.level
    LOGGER.setLevel(logging.INFO)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    LOGGER.setLevel(level)
    LOGGER.removeHandler(handler)


def test_api_keys(pipeline: TextToSound) -> None:
    with TestClient(make_app(pipeline, api_keys=("one", "two")), base_url=f"http://{HOST}") as c:
        wait_ready(c)
        for path in ("/", "/static/style.css", "/healthz", "/readyz"):
            assert c.get(path).status_code == 200, path
        for headers in (
            {},
            {"Authorization": "Bearer three"},
            {"X-API-Key": ""},
            {"Authorization": "one"},
        ):
            refused = c.post("/v1/generate", json=BODY, headers=headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
        assert c.get("/metrics").status_code == 401
        for headers in ({"Authorization": "Bearer two"}, {"X-API-Key": "one"}):
            assert c.post("/v1/generate", json=BODY, headers=headers).status_code == 200


def test_other_web_sites_are_kept_out(client: TestClient) -> None:
    for origin in ("https://evil.example", "null", "http://testserver.evil.example"):
        refused = client.post("/v1/generate", json=BODY, headers={"Origin": origin})
        assert refused.status_code == 403
        assert "access-control-allow-origin" not in refused.headers
    own = client.post("/v1/generate", json=BODY, headers={"Origin": f"http://{HOST}"})
    assert own.status_code == 200
    # A name that someone else points at this machine.
    assert client.get("/v1/bundles", headers={"Host": "evil.example"}).status_code == 403


def test_a_local_server_answers_to_local_names_only() -> None:
    assert ServerSettings().allowed_hosts == ("localhost", "127.0.0.1", "::1")
    assert ServerSettings(host="0.0.0.0").allowed_hosts is None
    assert ServerSettings(host="0.0.0.0", hosts=("a.example",)).allowed_hosts == ("a.example",)


def test_cors_is_open_to_those_who_were_named(pipeline: TextToSound) -> None:
    app = make_app(pipeline, cors_origins=("https://good.example",), api_keys=("k",))
    with TestClient(app, base_url=f"http://{HOST}") as c:
        wait_ready(c)
        asked = {"Origin": "https://good.example", "Access-Control-Request-Method": "POST"}
        assert c.options("/v1/generate", headers=asked).status_code == 200
        key = {"Authorization": "Bearer k"}
        good = c.post("/v1/generate", json=BODY, headers=key | {"Origin": "https://good.example"})
        assert good.headers["access-control-allow-origin"] == "https://good.example"
        bad = c.post("/v1/generate", json=BODY, headers=key | {"Origin": "https://evil.example"})
        assert bad.status_code == 403


def test_bodies_that_are_too_large(pipeline: TextToSound) -> None:
    app = make_app(pipeline, limits=Limits(upload_bytes=5000))
    with TestClient(app, base_url=f"http://{HOST}") as c:
        wait_ready(c)
        upload = {"clip": ("x.wav", b"0" * 100_000)}
        assert c.post("/v1/clips", files=upload).status_code == 413
        assert c.post("/v1/generate", content=b" " * 70_000).status_code == 413

        def chunks() -> Iterator[bytes]:  # no length is promised
            for _ in range(20):
                yield b" " * 10_000

        headers = {"Content-Type": "application/json"}
        assert c.post("/v1/generate", content=chunks(), headers=headers).status_code == 413
        assert c.post("/v1/generate", json=BODY).status_code == 200


def test_a_body_that_does_not_come(pipeline: TextToSound) -> None:
    """A client that stops sending is answered, not waited for."""
    app = make_app(pipeline, limits=Limits(body_timeout=0.05))
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(60)
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/v1/generate", "raw_path": b"/v1/generate",
        "query_string": b"", "http_version": "1.1", "scheme": "http", "root_path": "",
        "headers": [(b"host", HOST.encode()), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1), "server": (HOST, 80),
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 408


def test_request_ids(client: TestClient) -> None:
    assert (
        client.get("/healthz", headers={"X-Request-ID": "abc-1"}).headers["x-request-id"] == "abc-1"
    )
    for hostile in ("a b", "x" * 65, '"};'):
        given = client.get("/healthz", headers={"X-Request-ID": hostile}).headers["x-request-id"]
        assert given != hostile
        assert len(given) == 16


def test_logs_have_no_prompts_unless_asked(pipeline: TextToSound, log_lines: Any) -> None:
    for log_prompts in (False, True):
        app = make_app(pipeline, log_prompts=log_prompts)
        with TestClient(app, base_url=f"http://{HOST}") as c:
            wait_ready(c)
            secret = {"prompt": "my secret idea", "duration": 0.5}
            c.post("/v1/generate", json=secret, headers={"X-Request-ID": "r1"})
            c.post("/v1/generate", json=secret | {"num_candidates": 99})
            c.post("/v1/generate", json=secret | {"my secret idea": 1})
        text = json.dumps(log_lines())
        assert ("my secret idea" in text) == log_prompts
    (line, *_) = [one for one in log_lines() if one.get("request_id") == "r1"]
    assert line["status"] == 200
    assert line["path"] == "/v1/generate"
    assert line["ms"] > 0
    assert line["event"] == "request"


def test_metrics(pipeline: TextToSound) -> None:
    with TestClient(make_app(pipeline), base_url=f"http://{HOST}") as c:
        wait_ready(c)
        for _ in range(3):
            c.post("/v1/generate", json=BODY)
        c.get("/v1/sounds/one")
        c.get("/v1/sounds/two")
        text = c.get("/metrics").text
    assert "diffsound_sounds_total 3.0" in text
    assert "diffsound_sound_seconds_total 1.5" in text
    assert 'diffsound_requests_total{method="POST",route="/v1/generate",status="200"} 3.0' in text
    # One series for all ids.
    assert 'route="/v1/sounds/{name}",status="404"} 2.0' in text
    assert "diffsound_queue_length 0.0" in text


def test_not_ready_until_loaded(pipeline: TextToSound) -> None:
    loaded = threading.Event()

    def load() -> dict[str, TextToSound]:
        assert loaded.wait(60)
        return {"tiny": pipeline}

    from diffsound.serving.app import create_app

    app = create_app(ServerSettings(hosts=(HOST,)), load=load)
    with TestClient(app, base_url=f"http://{HOST}") as c:
        assert c.get("/healthz").status_code == 200
        assert c.get("/readyz").json() == {"status": "loading"}
        early = c.post("/v1/generate", json=BODY)
        assert early.status_code == 503
        assert int(early.headers["retry-after"]) > 0
        loaded.set()
        wait_ready(c)
        assert c.post("/v1/generate", json=BODY).status_code == 200


def test_a_full_queue_is_429_and_a_slow_one_503(watched: WatchedPipeline) -> None:
    app = make_app(watched, lanes=1, limits=Limits(queue=1, timeout=1.0))
    with TestClient(app, base_url=f"http://{HOST}") as c:
        wait_ready(c)
        watched.entered.acquire()  # the warm-up
        watched.gate.clear()
        running = c.post("/v1/jobs", json=BODY).json()
        assert watched.entered.acquire(timeout=60)
        waiting = c.post("/v1/jobs", json=BODY)
        assert waiting.status_code == 202
        refused = c.post("/v1/generate", json=BODY)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        time.sleep(1.5)
        for job in (running, waiting.json()):
            shown = c.get(job["url"]).json()
            assert shown["status"] == "failed"
            assert "too long" in shown["error"]
        slow = c.post("/v1/generate", json=BODY)
        assert slow.status_code == 503
        watched.gate.set()


def test_cancelling_a_job(watched: WatchedPipeline) -> None:
    with TestClient(make_app(watched, lanes=1), base_url=f"http://{HOST}") as c:
        wait_ready(c)
        watched.entered.acquire()
        watched.gate.clear()
        jobs = [c.post("/v1/jobs", json=BODY).json() for _ in range(2)]
        assert watched.entered.acquire(timeout=60)
        for job in jobs:
            assert c.delete(job["url"]).json()["status"] == "cancelled"
        steps = watched.steps
        watched.gate.set()
        assert c.post("/v1/generate", json=BODY).status_code == 200
        # The running one stopped at its next step, the waiting one never began.
        assert watched.steps == steps + 1 + 3


def test_a_bug_is_a_500_without_details(watched: WatchedPipeline, log_lines: Any) -> None:
    with TestClient(make_app(watched), base_url=f"http://{HOST}") as c:
        wait_ready(c)
        answer = c.post("/v1/generate", json=BODY | {"prompt": "poison"})
        assert answer.status_code == 500
        assert "log has the details" in answer.json()["detail"]
        assert "cannot be made" not in answer.text
        assert "cannot be made" in json.dumps(log_lines())
        assert c.post("/v1/generate", json=BODY).status_code == 200


def sound_of(size: int) -> Sound:
    empty = np.zeros((0, 0), np.float32)
    return Sound(np.zeros(size // 4, np.float32), 22050, empty, empty, "rain", 0)


def test_the_store_lets_the_oldest_go() -> None:
    store = SoundStore(max_bytes=1000, max_seconds=60)
    names = [store.add(sound_of(400)) for _ in range(4)]
    assert [store.get(name) is not None for name in names] == [False, False, True, True]
    assert store.get("other") is None
    brief = SoundStore(max_bytes=1000, max_seconds=0.02)
    name = brief.add(sound_of(400))
    assert brief.get(name) is not None
    time.sleep(0.03)
    assert brief.get(name) is None
    assert len(brief) == 0
