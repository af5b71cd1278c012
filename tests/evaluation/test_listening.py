"""The listening test: blinded, joined, reported."""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from diffsound.errors import DataError, InputError
from diffsound.evaluation import listening
from diffsound.evaluation.listening import (
    ListeningServer,
    Ratings,
    build_test,
    crossed_interval,
    keep_ratings,
    krippendorff_alpha,
    listening_report,
    parse_ratings,
    read_key,
    read_ratings,
    report_markdown,
)
from listening_support import make_runs

LISTENER = "0123456789abcdef"


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, str | Path]:
    return make_runs(tmp_path)


@pytest.fixture
def test_folder(runs: dict[str, str | Path], tmp_path: Path) -> Path:
    return build_test(tmp_path / "mos", runs, texts=2).parent


@pytest.fixture
def server(test_folder: Path) -> Iterator[ListeningServer]:
    with ListeningServer(test_folder, port=0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def body(folder: Path, grade: int, at: float = 0, listener: str = LISTENER, count: int = 99) -> str:
    key = read_key(folder)
    rating = {"relevance": grade, "fidelity": grade, "intelligibility": grade, "at": at}
    chosen = dict.fromkeys(list(key.clips)[:count], rating)
    return json.dumps({"test": key.test, "listener": listener, "ratings": chosen})


def test_the_page_does_not_reveal_the_systems(test_folder: Path) -> None:
    page = (test_folder / "index.html").read_text(encoding="utf-8")
    key = read_key(test_folder)
    assert sorted(c.system for c in key.clips.values()) == ["ar"] * 2 + ["diff"] * 2 + ["real"] * 2
    assert all(name in page for name in key.clips)
    data = page.split('type="application/json">')[1].split("</script>")[0]
    for word in ("real", "diff", "clip-", ".wav"):
        bare = [s["name"] for s in json.loads(data)["sounds"]] + json.loads(data)["texts"]
        assert not any(word in entry for entry in bare)
    assert [s["name"] for s in json.loads(data)["sounds"]] == sorted(key.clips)
    assert "src=" not in page.split("<script>")[0]
    assert "http" not in data.replace("https", "")


def test_a_test_is_not_replaced_under_its_ratings(
    test_folder: Path, runs: dict[str, str | Path]
) -> None:
    with pytest.raises(InputError, match="already holds a test"):
        build_test(test_folder, runs)


def test_runs_must_share_texts(runs: dict[str, str | Path], tmp_path: Path) -> None:
    other = make_runs(tmp_path / "other", first=50)
    with pytest.raises(InputError, match="no text in common"):
        build_test(tmp_path / "x", {"a": runs["ar"], "b": other["ar"]})
    assert not (tmp_path / "x" / "key.json").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test": "other"}, "another test"),
        ({"listener": "../../etc/passwd"}, "hexadecimal"),
        ({"ratings": {"nothing": {}}}, "not ratings"),
        ({"extra": 1}, "extra"),
    ],
)
def test_foreign_ratings_are_refused(
    test_folder: Path, change: dict[str, object], message: str
) -> None:
    content = json.loads(body(test_folder, 3)) | change
    with pytest.raises(InputError, match=message):
        parse_ratings(json.dumps(content).encode(), read_key(test_folder))
    grades = body(test_folder, 6)
    with pytest.raises(InputError, match="less than or equal to 5"):
        parse_ratings(grades.encode(), read_key(test_folder))


def test_the_later_rating_wins(test_folder: Path) -> None:
    for grade, at in ((2, 10.0), (5, 30.0), (1, 20.0)):
        sent = Ratings.model_validate_json(body(test_folder, grade, at))
        keep_ratings(test_folder, sent)
    ((kept,), failed) = read_ratings(test_folder)
    assert {rating.fidelity for rating in kept.ratings.values()} == {5}
    assert not failed


def request(server: ListeningServer, method: str, path: str, **more: object) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    try:
        connection.request(method, path, **more)  # type: ignore[arg-type]
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_the_server_serves_only_the_page(server: ListeningServer, test_folder: Path) -> None:
    assert request(server, "GET", "/")[0] == 200
    for path in ("/key.json", "/ratings/", "/../key.json", "/%2e%2e/key.json"):
        assert request(server, "GET", path)[0] == 404
    assert request(server, "GET", "/", headers={"Host": "evil.example:80"})[0] == 403
    good = body(test_folder, 4)
    assert request(server, "PUT", f"/ratings/{LISTENER}", body=good) == (200, "6 sounds graded")
    assert request(server, "PUT", "/ratings/other", body=good)[0] == 422
    assert request(server, "PUT", f"/ratings/{LISTENER}", body="{")[0] == 422
    many = {"Content-Length": str(1 << 30)}
    assert request(server, "PUT", f"/ratings/{LISTENER}", headers=many)[0] == 413
    assert len(list((test_folder / "ratings").iterdir())) == 1


def test_connections_have_an_end_and_a_number(
    test_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sends a header now and then would keep a thread for good."""
    monkeypatch.setattr(listening, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(listening, "CONNECTION_SECONDS", 1.0)
    with ListeningServer(test_folder, port=0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        address = "127.0.0.1", server.server_address[1]
        lines = [socket.create_connection(address, timeout=30) for _ in range(3)]
        for line in lines[:2]:
            line.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
        for line in (lines[2], *lines[:2]):  # refused at once, then ended
            with suppress(ConnectionResetError):
                assert line.recv(100) == b""
            line.close()
        deadline = time.monotonic() + 30
        while True:  # their places are free again
            try:
                assert request(server, "GET", "/")[0] == 200
                break
            except (http.client.HTTPException, OSError):
                assert time.monotonic() < deadline
        server.shutdown()
        thread.join()


def test_a_test_takes_so_many_listeners(test_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "MAX_LISTENERS", 1)
    key = read_key(test_folder)
    for _ in range(2):  # again by the same one is fine
        keep_ratings(test_folder, parse_ratings(body(test_folder, 3).encode(), key))
    other = parse_ratings(body(test_folder, 3, listener="b" * 16).encode(), key)
    with pytest.raises(InputError, match="takes no more"):
        keep_ratings(test_folder, other)


def test_answers_carry_a_content_policy(server: ListeningServer) -> None:
    for path, policy in (
        ("/", "frame-ancestors 'none'"),
        ("/other", "default-src 'none'; frame-ancestors 'none'"),
    ):
        with socket.create_connection(server.server_address[:2], timeout=10) as connection:
            connection.sendall(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:1\r\n\r\n".encode())
            head = connection.makefile("rb").read().split(b"\r\n\r\n")[0].decode()
        assert f"Content-Security-Policy: {policy}" in head.splitlines()
    assert b'http-equiv="Content-Security-Policy"' in server.page


def test_the_report_has_means_intervals_and_agreement(test_folder: Path) -> None:
    with pytest.raises(DataError, match="nobody has rated"):
        listening_report(test_folder)
    for listener, grade, count in (("a" * 8, 3, 6), ("b" * 8, 4, 6), ("c" * 8, 5, 1)):
        sent = body(test_folder, grade, listener=listener, count=count)
        keep_ratings(test_folder, Ratings.model_validate_json(sent))
    (test_folder / "ratings" / "broken.json").write_text("{")
    report = listening_report(test_folder)
    assert report["listeners"] == 3
    assert report["ratings"] == 13
    assert list(report["unreadable"]) == ["broken.json"]
    ar = report["systems"]["ar"]["MOS"]
    assert ar["low"] <= ar["mean"] <= ar["high"]
    assert 3 <= ar["mean"] <= 4.5
    text = report_markdown(report)
    assert "(2.786)" in text
    assert "broken.json" in text
    assert (test_folder / "report.md").read_text() == text


def slow_alpha(values: np.ndarray) -> float:
    """By the definition: every ordered pair of ratings."""
    units = [[v for v in column if not np.isnan(v)] for column in values.T]
    units = [unit for unit in units if len(unit) >= 2]
    pooled = [v for unit in units for v in unit]
    observed = sum(
        (a - b) ** 2 / (len(unit) - 1) for unit in units for a, b in itertools.permutations(unit, 2)
    ) / len(pooled)
    expected = sum((a - b) ** 2 for a, b in itertools.permutations(pooled, 2))
    return 1 - observed / (expected / (len(pooled) * (len(pooled) - 1)))


@settings(max_examples=40, deadline=None)
@given(
    arrays.arrays(
        np.float64, (3, 5), elements=st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, np.nan])
    )
)
def test_agreement_matches_its_definition(values: np.ndarray) -> None:
    found = krippendorff_alpha(values)
    if found is not None:
        assert found == pytest.approx(slow_alpha(values), abs=1e-9)


def test_agreement_of_the_published_example() -> None:
    """Krippendorff's four observers and twelve units: 0.849 on an interval scale."""
    n = np.nan
    values = np.array(
        [
            [1, 2, 3, 3, 2, 1, 4, 1, 2, n, n, n],
            [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, n, 3],
            [n, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, n],
            [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, n],
        ]
    )
    assert krippendorff_alpha(values) == pytest.approx(0.849, abs=5e-4)
    assert krippendorff_alpha(np.full((3, 4), 2.0)) is None


def test_the_interval_accounts_for_differing_listeners() -> None:
    """Many ratings by two people who disagree are still two opinions."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(2, 100))
    texts = [f"text {n}" for n in range(100)]
    low, high = crossed_interval(noise, texts)
    lower, higher = crossed_interval(noise + np.array([[0.0], [4.0]]), texts)
    assert higher - lower > 3 * (high - low)
    assert crossed_interval(noise[:1, :1], texts[:1]) == (None, None)
