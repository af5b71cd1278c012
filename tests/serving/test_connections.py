"""Connections that send slowly, read slowly, or come in crowds."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from diffsound.generation.pipeline import TextToSound
from diffsound.serving.settings import Limits
from serving_support import live_server, make_app

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as line:
        yield line


def read_all(line: socket.socket) -> bytes:
    """What the server sends until it closes the connection."""
    data = b""
    while True:
        try:
            part = line.recv(65536)
        except ConnectionResetError:
            return data
        if not part:
            return data
        data += part


@pytest.fixture(scope="module")
def strict(pipeline: TextToSound) -> Iterator[str]:
    """A server that waits half a second for headers and lets four connections in."""
    limits = Limits(head_timeout=0.5, connections_per_address=4, write_timeout=0.5)
    with live_server(make_app(pipeline, limits=limits)) as url:
        yield url


def refused(url: str, reason: str) -> float:
    text = httpx.get(f"{url}/metrics").text
    for line in text.splitlines():
        if line.startswith(f'diffsound_connections_refused_total{{reason="{reason}"}}'):
            return float(line.split()[-1])
    return 0.0


def test_half_sent_headers_time_out(strict: str) -> None:
    with connected(strict) as line:
        line.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
        assert read_all(line).startswith(b"HTTP/1.1 408 ")
    assert refused(strict, "head") >= 1


def test_headers_sent_byte_by_byte_time_out(strict: str) -> None:
    start = time.monotonic()
    with connected(strict) as line:
        line.settimeout(0.05)
        answer = b""
        for byte in HEALTH[:-2] + b"X" * 1000:
            try:
                line.sendall(bytes([byte]))
                answer = line.recv(100)
                break
            except TimeoutError:
                assert time.monotonic() - start < 20, "the server waits for the headers"
            except OSError:
                break
    assert answer.startswith(b"HTTP/1.1 408 ") or not answer


def test_the_second_request_of_a_connection_times_out_too(strict: str) -> None:
    with connected(strict) as line:
        line.sendall(HEALTH)
        first = b""
        while not first.endswith(b'{"status":"ok"}'):
            first += line.recv(65536)
        line.sendall(HEALTH[:20])
        assert read_all(line).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    ("head", "more"),
    [
        (b"GET /healthz HTTP/1.1\r\nContent-Length: 1000", b"x"),
        (b"POST /nowhere HTTP/1.1\r\nTransfer-Encoding: chunked", b"1\r\nx\r\n"),
        (b"POST /v1/jobs HTTP/1.1\r\nOrigin: http://evil\r\nContent-Length: 9", b"x"),
    ],
    ids=["not wanted", "no such page", "other site"],
)
def test_a_body_that_goes_on_after_its_answer_times_out(
    strict: str, head: bytes, more: bytes
) -> None:
    """One more byte stops uvicorn's keep-alive timer, and the place would be taken for good."""
    with connected(strict) as line:
        line.sendall(head + b"\r\nHost: 127.0.0.1\r\n\r\n")
        assert line.recv(65536).startswith(b"HTTP/1.1 ")
        line.sendall(more)
        assert read_all(line).count(b"HTTP/1.1 ") == 0  # closed, and not answered twice


def test_requests_sent_together_are_answered_in_turn(strict: str) -> None:
    with connected(strict) as line:
        line.sendall(HEALTH * 2 + HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert read_all(line).count(b"HTTP/1.1 200 ") == 3


def test_a_connection_that_says_nothing_is_closed(strict: str) -> None:
    with connected(strict) as line:
        assert read_all(line) == b""


def test_connections_of_one_address_are_limited(strict: str) -> None:
    with ExitStack() as stack:
        lines = [stack.enter_context(connected(strict)) for _ in range(6)]
        for line in lines[:4]:
            line.sendall(HEALTH)
            assert line.recv(65536).startswith(b"HTTP/1.1 200 ")
        for line in lines[4:]:
            answer = read_all(line)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"too many connections" in answer
    # Their places are free again.
    deadline = time.monotonic() + 20
    while True:
        try:
            if httpx.get(f"{strict}/healthz").status_code == 200:
                break
        except httpx.HTTPError:
            pass
        assert time.monotonic() < deadline
    assert refused(strict, "address") >= 2


def test_there_are_only_so_many_connections(pipeline: TextToSound) -> None:
    app = make_app(pipeline, limits=Limits(connections=2))
    with live_server(app) as url, ExitStack() as stack:
        first, second, third = (stack.enter_context(connected(url)) for _ in range(3))
        for line in (first, second):
            line.sendall(HEALTH)
            assert line.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert read_all(third).startswith(b"HTTP/1.1 503 ")


def test_a_client_that_does_not_read_is_cut_off(strict: str) -> None:
    with connected(strict) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        line.sendall(request * 150)  # megabytes of answers, none of them read
        deadline = time.monotonic() + 30
        while refused(strict, "unread") < 1:
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.parametrize(
    ("request_line", "header", "status"),
    [
        (b"GET /healthz HTTP/1.1", b"X-Long: " + b"x" * 20_000, (400, 431)),
        (b"GET /" + b"x" * 3000 + b" HTTP/1.1", b"X: y", (414,)),
        (b"GET /?" + b"x" * 3000 + b" HTTP/1.1", b"X: y", (414,)),
        (b"X" * 5000 + b" / HTTP/1.1", b"X: y", (405,)),
        (b"X" * 50_000 + b" / HTTP/1.1", b"X: y", (400, 405, 431)),
        (b"GET /healthz HTTP/1.1", b"\r\n".join([b"X: y"] * 5000), (400, 431)),
    ],
)
def test_heads_that_are_too_long(
    strict: str, request_line: bytes, header: bytes, status: tuple[int, ...]
) -> None:
    with connected(strict) as line:
        line.sendall(
            request_line + b"\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + header + b"\r\n\r\n"
        )
        assert int(read_all(line).split()[1]) in status
    assert httpx.get(f"{strict}/healthz").status_code == 200


def test_methods_and_paths_do_not_grow_the_metrics(strict: str) -> None:
    def send(number: int) -> None:
        with connected(strict) as line:
            method = f"M{number}" + "X" * 1000
            line.sendall(
                f"{method} /p{number} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                "Connection: close\r\n\r\n".encode()
            )
            read_all(line)

    send(0)
    size = len(httpx.get(f"{strict}/metrics").content)
    for number in range(1, 40):
        send(number)
    text = httpx.get(f"{strict}/metrics").text
    assert len(text) < size + 500
    assert 'diffsound_requests_total{method="other",route="other",status="405"}' in text
