"""The server as a process: signals, hang-ups, refusals at the start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from cli_support import RUN
from diffsound.audio.io import encode_audio
from serving_support import WatchedPipeline, live_server, make_app


class Serving:
    """`diffsound serve` as a process: its address, and the lines of its log so far."""

    def __init__(self, *arguments: str, port: int = 0) -> None:
        environment = {**os.environ, "DIFFSOUND_API_KEYS": ""}
        self.process = subprocess.Popen(
            [*RUN, "serve", *arguments, "--port", str(port)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("serving on http://"), self.log
        self.url = line.split()[-1]

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)

    def post(self, answers: list[httpx.Response], **body: Any) -> threading.Thread:
        """Ask for sounds in a thread, and return once they are being made."""
        accept = {"Accept": "application/json" if "num_candidates" in body else "audio/wav"}

        def ask() -> None:
            with suppress(httpx.HTTPError):
                answers.append(
                    httpx.post(f"{self.url}/v1/generate", json=body, headers=accept, timeout=120)
                )

        asking = threading.Thread(target=ask)
        asking.start()
        while "diffsound_running 0.0" in httpx.get(f"{self.url}/metrics", timeout=60).text:
            assert asking.is_alive(), "the work was over before it could be interrupted"
            time.sleep(0.01)
        return asking

    def ended(self, seconds: float = 60) -> int:
        """The exit code, and the whole log, of which every line is JSON."""
        code = self.process.wait(seconds)
        self._reader.join(10)
        for line in self.log:
            json.loads(line)
        return code


@contextmanager
def serving(*arguments: str, port: int = 0) -> Iterator[Serving]:
    server = Serving(*arguments, port=port)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def test_a_signal_lets_running_work_finish(tiny_folder: Path) -> None:
    with serving("-b", str(tiny_folder)) as server:
        answers: list[httpx.Response] = []
        asking = server.post(answers, prompt="rain", duration=30, num_inference_steps=10)
        server.process.send_signal(signal.SIGTERM)
        asking.join(120)
        assert server.ended() == 0
        assert answers[0].status_code == 200
        assert len(answers[0].content) > 30 * 22050 * 2
        assert any('"path": "/v1/generate"' in line for line in server.log)
        assert not any("Traceback" in line for line in server.log)


@pytest.mark.parametrize("signals", [1, 2])
def test_work_that_outlasts_the_grace_time_is_stopped(tiny_folder: Path, signals: int) -> None:
    """Its caller gets an answer, and the process ends; a second signal does not wait either."""
    grace = "0.2" if signals == 1 else "60"
    with serving("-b", str(tiny_folder), "--grace", grace, "--max-work", "1000") as server:
        answers: list[httpx.Response] = []
        body = {"prompt": "rain", "duration": 30, "num_inference_steps": 10, "num_candidates": 8}
        asking = server.post(answers, **body)
        start = time.monotonic()
        for _ in range(signals):
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        asking.join(60)
        code = server.ended()
        assert code == 0
        assert time.monotonic() - start < 45
        assert answers[0].status_code == 503
        assert "shutting down" in answers[0].json()["detail"]


def test_a_killed_server_starts_again_on_the_same_port(tiny_folder: Path) -> None:
    with serving("-b", str(tiny_folder)) as server:
        port = int(server.url.rpartition(":")[2])
        asking = server.post([], prompt="rain", duration=30, num_inference_steps=10)
        server.process.send_signal(signal.SIGKILL)
        asking.join(60)
        server.process.wait(60)
    with serving("-b", str(tiny_folder), port=port) as server:
        body = {"prompt": "rain", "duration": 0.5}
        assert httpx.post(f"{server.url}/v1/generate", json=body, timeout=60).status_code == 200


def test_every_line_of_the_log_is_json_whatever_libraries_print(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """mpg123 prints to stderr about a damaged MP3; requests that are no HTTP are logged too."""
    audit = tmp_path / "audit.log"
    with serving("-b", str(tiny_folder), "--audit-log", str(audit)) as server:
        noise = np.random.default_rng(0).uniform(-0.5, 0.5, 22050)
        good = encode_audio(noise, 22050, "mp3")
        for place in range(200, 2000, 150):
            damaged = bytearray(good)
            damaged[place : place + 60] = bytes(range(60))
            files = {"clip": ("x.mp3", bytes(damaged))}
            httpx.post(f"{server.url}/v1/clips", files=files, timeout=60)
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as line:
            line.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
            line.recv(1000)
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == 0
    events = [json.loads(line)["event"] for line in server.log]
    assert "serving" in events
    assert "message on stderr" in events
    assert "Invalid HTTP request received." in events
    audited = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [line["event"] for line in audited[:2]] == ["serving", "request"]
    assert audited[-1]["event"] == "stopped"


def test_a_bundle_whose_default_steps_exceed_its_own_is_served(
    tiny_folder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "copy"))
    config = json.loads((folder / "config.json").read_text())
    config["defaults"] = {"duration": 0.5}  # as a bundle is built when nothing is said
    (folder / "config.json").write_text(json.dumps(config))
    with serving("-b", str(folder)) as server:
        answer = httpx.post(f"{server.url}/v1/generate", json={"prompt": "rain"}, timeout=60)
        assert answer.status_code == 200
        (bundle,) = httpx.get(f"{server.url}/v1/bundles").json()["bundles"]
        assert bundle["defaults"]["num_inference_steps"] == bundle["timesteps"]


def test_hanging_up_stops_the_work_at_its_next_step(watched: WatchedPipeline) -> None:
    app = make_app(watched, lanes=1)
    with live_server(app) as url:
        watched.entered.acquire()  # the warm-up
        watched.gate.clear()
        host, port = url.removeprefix("http://").split(":")
        body = b'{"prompt": "rain", "duration": 0.5}'
        with socket.create_connection((host, int(port))) as line:
            line.sendall(
                b"POST /v1/generate HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                b"Content-Type: application/json\r\n"
                + f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            assert watched.entered.acquire(timeout=60)
        deadline = time.monotonic() + 60
        sample = 'route="/v1/generate",status="499"} 1.0'
        while sample not in httpx.get(f"{url}/metrics", timeout=60).text:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        steps = watched.steps
        watched.gate.set()
        answer = httpx.post(f"{url}/v1/generate", json=json.loads(body), timeout=60)
        assert answer.status_code == 200
        assert (
            watched.steps == steps + 1 + 3
        )  # stopped at its first step; then the next one's three


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("serve", "-b", "no-such-folder"), "no bundle at"),
        (("serve", "--max-batch", "0"), "--max-batch must be"),
        (("serve", "--port", "99999"), "port"),
        (("serve", "--api-keys-file", "no-such-file"), "cannot read the API keys"),
        (("serve", "--audit-log", "no-such-folder/audit.log"), "cannot write the audit log"),
        (("serve", "--rate-limit", "0"), "rate"),
        (("ui", "-b", "no-such-folder"), "no bundle at"),
    ],
)
def test_refusals_at_the_start(arguments: tuple[str, ...], message: str) -> None:
    result = subprocess.run([*RUN, *arguments], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_taken_port(tiny_folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = subprocess.run(
            [*RUN, "serve", "-b", str(tiny_folder), "--port", port],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert result.returncode == 2
    assert f"127.0.0.1:{port}" in result.stderr
    assert result.stderr.count("\n") == 1
