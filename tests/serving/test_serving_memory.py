"""Everything a client can make the server keep is bounded, by bytes and by time."""

from __future__ import annotations

import asyncio
import io
import re
import socket
import time
import weakref
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from fastapi.testclient import TestClient

from diffsound.errors import InputError
from diffsound.generation.pipeline import TextToSound
from diffsound.generation.sound import Sound
from diffsound.model.bundle import Bundle
from diffsound.serving.answers import AnswerSpace
from diffsound.serving.errors import CancelledError, TooManyError
from diffsound.serving.jobs import RECORD_BYTES, JobBook, JobRecord
from diffsound.serving.settings import MEBIBYTE, Limits
from diffsound.serving.sounds import SoundStore
from diffsound.serving.tasks import Recipe, Task
from serving_support import HOST, live_server, make_app, wait_ready

WIDE: dict[str, Any] = {
    "rate": 192_000,
    "channels": 2,
    "bit_depth": "32f",
}  # 1.5 MB for a second of sound
LONG = {"prompt": "rain", "duration": 30, "num_inference_steps": 1, "num_candidates": 4}
SOUND_BYTES = 30 * 22050 * 4


def sound_of(size: int) -> Sound:
    empty = np.zeros((0, 0), np.float32)
    return Sound(np.zeros(size // 4, np.float32), 22050, empty, empty, "rain", 0)


class CountedPipeline(TextToSound):
    """The real pipeline; it remembers, weakly, the wave of every sound it made."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle)
        self.waves: list[weakref.ref[np.ndarray]] = []

    def run_jobs(self, jobs: Sequence[Any], **options: Any) -> list[Sound]:
        sounds = super().run_jobs(jobs, **options)
        self.waves += [weakref.ref(sound.wave) for sound in sounds]
        return sounds

    @property
    def alive(self) -> int:
        return sum(wave() is not None for wave in self.waves)


def finish(client: TestClient, url: str) -> dict[str, Any]:
    for _ in range(2400):
        job = client.get(url).json()
        if job["status"] in ("done", "failed", "cancelled"):
            return job
        time.sleep(0.025)
    raise AssertionError("the job did not end")


def kept(client: TestClient, kind: str) -> float:
    text = client.get("/metrics").text
    found = re.search(rf'diffsound_kept_bytes{{kind="{kind}"}} (\S+)', text)
    assert found is not None
    return float(found[1])


def test_ended_jobs_hold_no_waves(tiny_bundle: Bundle) -> None:
    """However many jobs have ended, only the store's bytes stay, and the metrics say how many."""
    pipeline = CountedPipeline(tiny_bundle)
    app = make_app(pipeline, lanes=1, keep_bytes=3 * SOUND_BYTES)
    with TestClient(app, base_url=f"http://{HOST}") as client:
        wait_ready(client)
        for _ in range(3):
            job = finish(client, client.post("/v1/jobs", json=LONG).json()["url"])
            assert job["status"] == "done"
            assert len(job["sounds"]) == 4
        # The store has copies; what the model made is free, without waiting for the collector.
        assert len(pipeline.waves) == 12 + 1  # and the warm-up
        assert pipeline.alive == 0
        assert 0 < kept(client, "sounds") <= 3 * SOUND_BYTES
        assert len(app.state.service.store) == 2
        assert 0 < kept(client, "jobs") < 12 * 50_000


def test_what_has_expired_goes_without_a_request(pipeline: TextToSound) -> None:
    """A server that nobody calls any more gives its memory back."""
    app = make_app(pipeline, keep_seconds=0.2)
    with TestClient(app, base_url=f"http://{HOST}") as client:
        wait_ready(client)
        body = {"prompt": "rain", "duration": 0.5, "deliver": "url"}
        client.post("/v1/generate", json=body, headers={"Accept": "application/json"})
        store = app.state.service.store
        assert store.bytes > 0
        deadline = time.monotonic() + 30
        while store.bytes:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert len(store) == 0


def test_the_store_drops_the_oldest() -> None:
    store = SoundStore(max_bytes=1000, max_seconds=60)
    names = [store.add(sound_of(400)) for _ in range(4)]
    assert [store.get(name) is not None for name in names] == [False, False, True, True]
    assert store.bytes == 800
    assert store.get("other") is None
    brief = SoundStore(max_bytes=1000, max_seconds=0.02)
    name = brief.add(sound_of(400))
    assert brief.get(name) is not None
    time.sleep(0.03)
    assert brief.get(name) is None
    assert len(brief) == 0


def test_the_store_counts_what_it_holds() -> None:
    """A view of a large array is copied: its bytes are not the ones it would keep alive."""
    batch = np.zeros((8, 1000), np.float32)
    whole = weakref.ref(batch)
    store = SoundStore(max_bytes=10_000, max_seconds=60)
    empty = np.zeros((0, 0), np.float32)
    store.add(Sound(batch[0], 22050, empty, empty, "rain", 0))
    del batch
    assert whole() is None
    assert store.bytes == 4000


def ended_job(book: JobBook, text: str) -> JobRecord:
    record = JobRecord("generate", 1)
    task = Task(Recipe("tiny", 1.0), (), timeout=60)
    book.open(record, task)
    record.on_preview(0, "data:" + "p" * 5000)
    record.on_sound(0, text)
    record.finish(None)
    return record


def test_jobs_are_dropped_by_bytes_and_by_age() -> None:
    async def check() -> None:
        book = JobBook(keep_seconds=60, keep_bytes=3 * RECORD_BYTES)
        jobs = [ended_job(book, '"' + "s" * 1000 + '"') for _ in range(4)]
        running = JobRecord("generate", 1)
        book.open(running, Task(Recipe("tiny", 1.0), (), timeout=60))
        book.sweep()
        # A preview is not kept beyond the end; the sound is, as an event and in the answer.
        assert all(2000 < job.bytes - RECORD_BYTES < 2500 for job in jobs)
        assert all(job.task is None for job in jobs)
        assert [book.get(job.id) is not None for job in jobs] == [False, False, False, True]
        assert book.get(running.id) is running
        assert book.bytes <= 3 * RECORD_BYTES
        brief = JobBook(keep_seconds=0.01, keep_bytes=10**9)
        job = ended_job(brief, '"s"')
        time.sleep(0.02)
        assert brief.get(job.id) is None

    asyncio.run(check())


def test_a_cancelled_task_lets_go_of_its_sounds() -> None:
    from diffsound.generation.jobs import make_jobs

    task = Task(Recipe("tiny", 1.0), make_jobs("rain", 2, 0, None), timeout=60)
    sound = sound_of(400)
    wave = weakref.ref(sound.wave)
    task.deliver(0, sound)
    del sound
    assert wave() is not None
    task.cancel()
    assert wave() is None
    assert isinstance(task.result.exception(), CancelledError)


def test_answers_have_a_space_and_one_caller_half_of_it() -> None:
    space = AnswerSpace(1000)
    first, second, other = {"caller": "ann"}, {"caller": "ann"}, {"caller": "bob"}
    with pytest.raises(InputError, match="ask for fewer"):
        space.reserve(first, 501)
    space.reserve(first, 400)
    with pytest.raises(TooManyError, match="try again in 1 s"):
        space.reserve(second, 101)
    space.reserve(other, 500)
    with pytest.raises(TooManyError):
        space.reserve({"caller": "cid"}, 101)
    assert space.bytes == 900
    space.release(first)
    space.release(first)  # it was refused before, or has no answer to speak of
    space.release(second)
    assert space.bytes == 500
    space.reserve(second, 500)


def test_answers_that_nobody_reads_are_limited(pipeline: TextToSound) -> None:
    """A few bytes of a request make megabytes of an answer, which wait until they are read."""
    app = make_app(pipeline, limits=Limits(answer_bytes=32 * MEBIBYTE))
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, 5 * 22050)
    clip = io.BytesIO()
    soundfile.write(clip, noise, 22050, format="WAV")
    with live_server(app) as url, httpx.Client(base_url=url, timeout=60) as client:
        sound = client.post("/v1/clips", files={"clip": clip.getvalue()}).json()
        query = "&".join(f"{name}={value}" for name, value in WIDE.items())
        head = f"GET {sound['url']}?{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
        host, port = url.removeprefix("http://").split(":")
        lines = []
        for _ in range(2):
            line = socket.socket()
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.settimeout(60)
            line.connect((host, int(port)))
            line.sendall(head)
            lines.append(line)
            assert line.recv(100).startswith(b"HTTP/1.1 200 ")
        answer = client.get(sound["url"], params=WIDE)
        assert answer.status_code == 429
        assert answer.headers["Retry-After"] == "1"
        assert client.get(sound["url"]).status_code == 200  # what fits is sent
        for line in lines:
            line.close()
        deadline = time.monotonic() + 60
        while (answer := client.get(sound["url"], params=WIDE)).status_code == 429:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        kept = app.state.service.store.get(sound["id"])
        assert answer.content == kept.encode("wav", **WIDE)  # whole, though sent in pieces
        deadline = time.monotonic() + 60
        while app.state.service.answers.bytes:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_an_answer_larger_than_the_space_is_refused_before_it_is_made(
    pipeline: TextToSound,
) -> None:
    app = make_app(pipeline, limits=Limits(answer_bytes=2 * MEBIBYTE))
    with TestClient(app, base_url=f"http://{HOST}") as client:
        wait_ready(client)
        body = {"prompt": "rain", "duration": 1, "num_inference_steps": 1}
        answer = client.post("/v1/generate", json=body | WIDE)
        assert answer.status_code == 422
        assert "MiB" in answer.json()["detail"]
        assert client.post("/v1/generate", json=body).status_code == 200
        accept = {"Accept": "application/json"}
        links = body | WIDE | {"deliver": "url"}
        assert client.post("/v1/generate", json=links, headers=accept).status_code == 200
        assert app.state.service.answers.bytes == 0
