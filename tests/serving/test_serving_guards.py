"""Who may use the server, how much, and what it says about it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.concurrency import run_in_threadpool

from diffsound.generation.pipeline import TextToSound
from diffsound.judges.ranking import Matcher, MatcherConfig
from diffsound.judges.resnet import ResNetConfig
from diffsound.model.bundle import Bundle
from diffsound.serving.settings import Limits, ServerSettings
from diffsound.serving.telemetry import LOGGER, JsonFormatter
from diffsound.weights import write_export
from serving_support import HOST, WatchedPipeline, make_app, wait_ready
from support import with_defaults

BODY = {"prompt": "rain", "duration": 0.5, "seed": 1}


def post_scope(path: str, media: str) -> dict[str, Any]:
    """A POST as an ASGI server passes it on."""
    return {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
        "query_string": b"", "http_version": "1.1", "scheme": "http", "root_path": "",
        "headers": [(b"host", HOST.encode()), (b"content-type", media.encode())],
        "client": ("127.0.0.1", 1), "server": (HOST, 80),
    }  # fmt: skip


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


def test_other_web_sites_are_refused(client: TestClient) -> None:
    for origin in ("https://evil.example", "null", "http://testserver.evil.example"):
        refused = client.post("/v1/generate", json=BODY, headers={"Origin": origin})
        assert refused.status_code == 403
        assert "access-control-allow-origin" not in refused.headers
    own = client.post("/v1/generate", json=BODY, headers={"Origin": f"http://{HOST}"})
    assert own.status_code == 200
    # A name that someone else points at this machine.
    assert client.get("/v1/bundles", headers={"Host": "evil.example"}).status_code == 403


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "http://]", "//[x", "http://a]b:c"])
def test_an_origin_that_is_none_is_a_400(client: TestClient, origin: str) -> None:
    answer = client.post("/v1/generate", json=BODY, headers={"Origin": origin})
    assert answer.status_code in (400, 403)
    assert "detail" in answer.json()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "127.1", "localhost", "::1"])
def test_a_server_on_any_loopback_address_answers_to_local_names_only(host: str) -> None:
    allowed = ServerSettings(host=host).allowed_hosts
    assert allowed is not None
    assert {"localhost", "127.0.0.1", "::1", host} == set(allowed)


def test_a_public_server_answers_to_any_name_unless_told() -> None:
    assert ServerSettings(host="0.0.0.0").allowed_hosts is None
    assert ServerSettings(host="::").allowed_hosts is None
    assert ServerSettings(host="0.0.0.0", hosts=("a.example",)).allowed_hosts == ("a.example",)


def test_cors_is_open_to_the_named_origins(pipeline: TextToSound) -> None:
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


def test_bodies_that_are_too_large_are_cut_off(pipeline: TextToSound) -> None:
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


async def silent() -> dict[str, Any]:
    """A client that stops sending."""
    await asyncio.sleep(60)
    raise AssertionError


async def trickling() -> dict[str, Any]:
    """A client that sends a byte now and then."""
    await asyncio.sleep(0.05)
    return {"type": "http.request", "body": b" ", "more_body": True}


async def status_of(app: Any, path: str, kind: str, receive: Any) -> int:
    """The status of the answer to a request whose body arrives through `receive`."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await app(post_scope(path, kind), receive, send)
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    ("receive", "limits"),
    [(silent, Limits(body_timeout=0.05)), (trickling, Limits(body_timeout=5, timeout=0.3))],
)
def test_a_body_that_stops_or_trickles_in_is_a_408(
    receive: Any, limits: Limits, pipeline: TextToSound
) -> None:
    app = make_app(pipeline, limits=limits)
    assert asyncio.run(status_of(app, "/v1/generate", "application/json", receive)) == 408


def test_uploads_at_the_same_time_are_limited(pipeline: TextToSound) -> None:
    app = make_app(pipeline, limits=Limits(uploads=2, body_timeout=0.5))
    form = "multipart/form-data; boundary=x"

    async def crowd() -> list[int]:
        return sorted(
            await asyncio.gather(*(status_of(app, "/v1/clips", form, silent) for _ in range(3)))
        )

    assert asyncio.run(crowd()) == [408, 408, 429]
    assert asyncio.run(crowd()) == [408, 408, 429]  # the places are free again


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


def test_health_answers_while_everything_else_is_busy(watched: WatchedPipeline) -> None:
    """Lanes at work, a full queue and a thread pool without a free thread do not delay it."""
    app = make_app(watched, lanes=1, limits=Limits(queue=4))
    blocked = threading.Event()
    with TestClient(app, base_url=f"http://{HOST}") as c:
        wait_ready(c)
        watched.entered.acquire()  # the warm-up
        watched.gate.clear()
        # The lane takes one job, or a few that arrive together; then the queue fills.
        answers = [c.post("/v1/jobs", json=BODY).status_code for _ in range(12)]
        assert answers[:4] == [202] * 4
        assert answers[-1] == 429
        assert c.portal is not None
        for _ in range(60):  # more than the pool has threads
            c.portal.start_task_soon(run_in_threadpool, blocked.wait, 60)
        try:
            assert c.get("/healthz").json() == {"status": "ok"}
            assert c.get("/readyz").status_code == 200
        finally:
            blocked.set()
            watched.gate.set()


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_lanes_have_a_lower_priority_than_the_server(pipeline: TextToSound) -> None:
    app = make_app(pipeline, lanes=2)
    with TestClient(app, base_url=f"http://{HOST}") as c:
        wait_ready(c)
        own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        lanes = [one for one in threading.enumerate() if one.name.startswith("diffsound-lane")]
        niceness = [os.getpriority(os.PRIO_PROCESS, lane.native_id or 0) for lane in lanes[-2:]]
        assert all(value > own or value == 19 for value in niceness)


def test_work_counts_every_take_of_every_candidate(tiny_bundle: Bundle, tmp_path: Path) -> None:
    """The bundle's own number of takes counts, when the request gives none; an edit has one."""
    backbone = ResNetConfig(
        stem=4, widths=(8,), depths=(1,), strides=((2, 2),), feature_dim=12, dropout=0.0
    )
    matcher = Matcher(
        MatcherConfig(
            mel=tiny_bundle.config.codec.mel,
            backbone=backbone,
            text_dim=tiny_bundle.text_encoder.dim,
            text_fingerprint=tiny_bundle.text_encoder.fingerprint,
            dim=8,
        )
    )
    config = matcher.config.model_dump(mode="json")
    write_export(tmp_path, "matcher", config, matcher.state_dict(), step=1, metrics={})
    bundle = replace(with_defaults(tiny_bundle, best_of=3), judges={"matcher": tmp_path})
    app = make_app(TextToSound(bundle), limits=Limits(work=3.5))
    with TestClient(app, base_url=f"http://{HOST}") as c:
        wait_ready(c)
        body = {"prompt": "rain", "duration": 1, "num_candidates": 1}
        kept = c.post(
            "/v1/generate", json=body | {"deliver": "url"}, headers={"Accept": "application/json"}
        )
        assert kept.status_code == 200
        over = c.post("/v1/generate", json=body | {"duration": 1.5})
        assert over.status_code == 422
        assert "1 sound of 1.5 s, the best of 3 each, means 4.5 s" in over.json()["detail"]
        assert c.post("/v1/generate", json=body | {"duration": 1.5, "best_of": 2}).is_success
        fields = {
            "prompt": "a bell",
            "num_candidates": "3",
            "sound": kept.json()["sounds"][0]["id"],
        }
        assert c.post("/v1/jobs/vary", files={k: (None, v) for k, v in fields.items()}).is_success
