"""The server as a process: signals, hang-ups, refusals at the start."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from cli_support import RUN
from diffsound.cli.serve import read_keys
from diffsound.errors import ConfigError
from serving_support import WatchedPipeline, live_server, make_app


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`diffsound serve` on a free port, and its address."""
    environment = {**os.environ, "DIFFSOUND_API_KEYS": ""}
    process = subprocess.Popen(
        [*RUN, *arguments, "--port", "0"],
        stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        url = ""
        for line in process.stderr:
            if found := re.search(r"http://[\d.:]+", line):
                url = found[0]
                break
        assert url, "the server did not start"
        yield process, url
    finally:
        process.kill()
        process.wait()


def test_a_signal_lets_running_work_finish(tiny_folder: Path) -> None:
    with serving("serve", "-b", str(tiny_folder)) as (process, url):
        answers: list[httpx.Response] = []
        body = {"prompt": "rain", "duration": 30, "num_inference_steps": 10}

        def ask() -> None:
            answers.append(httpx.post(f"{url}/v1/generate", json=body, timeout=120))

        asking = threading.Thread(target=ask)
        asking.start()
        while "diffsound_running 1.0" not in httpx.get(f"{url}/metrics", timeout=60).text:
            assert asking.is_alive(), "the work was over before it could be interrupted"
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        asking.join(120)
        _, errors = process.communicate(timeout=60)
        assert answers[0].status_code == 200
        assert len(answers[0].content) > 30 * 22050 * 2
        # Whatever else was said, every line of the log is JSON, and the request is in it.
        lines = [json.loads(line) for line in errors.splitlines() if line.startswith("{")]
        assert any(line.get("path") == "/v1/generate" for line in lines)
        assert "Traceback" not in errors


def test_hanging_up_cancels(watched: WatchedPipeline) -> None:
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
        (("serve", "--max-batch", "0"), "max_batch"),
        (("serve", "--port", "99999"), "port"),
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


def test_keys_from_a_file_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n\n two \n")
    monkeypatch.setenv("DIFFSOUND_API_KEYS", "three,")
    assert read_keys(file) == ("three", "one", "two")
    monkeypatch.delenv("DIFFSOUND_API_KEYS")
    assert read_keys(None) == ()
    file.write_text("\n")
    with pytest.raises(ConfigError, match="no keys"):
        read_keys(file)
    with pytest.raises(ConfigError, match="cannot read"):
        read_keys(tmp_path / "none")
