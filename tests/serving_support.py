"""What the server's tests share: an app in this process, and a pipeline that can be held."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient

from diffsound.generation.jobs import Job
from diffsound.generation.pipeline import TextToSound
from diffsound.generation.sound import Sound
from diffsound.model.bundle import Bundle
from diffsound.serving.app import create_app
from diffsound.serving.connections import server_options
from diffsound.serving.run import address, bind
from diffsound.serving.settings import ServerSettings

HOST = "testserver"


class WatchedPipeline(TextToSound):
    """The real pipeline; it notes every call, and waits at a gate before each one and each step."""

    def __init__(self, bundle: Bundle, **options: Any) -> None:
        super().__init__(bundle, **options)
        self.gate = threading.Event()
        self.gate.set()
        self.calls: list[list[str]] = []
        self.entered = threading.Semaphore(0)
        self.steps = 0
        self.hold_after: int | None = None  # close the gate automatically after this many steps

    def run_jobs(self, jobs: Sequence[Job], **options: Any) -> list[Sound]:
        self.calls.append([job.prompt for job in jobs])
        self.entered.release()
        assert self.gate.wait(60)
        callback = options.pop("callback") or (lambda share, tokens: None)

        def on_step(share: float, tokens: Any) -> None:
            self.steps += 1
            assert self.gate.wait(60)
            callback(share, tokens)
            if self.steps == self.hold_after:
                self.gate.clear()

        if any(job.prompt == "poison" for job in jobs):
            raise RuntimeError("this sound cannot be made")
        return super().run_jobs(jobs, callback=on_step, **options)


def make_app(pipeline: TextToSound, **settings: Any) -> FastAPI:
    values = {"hosts": (HOST, "127.0.0.1"), "lanes": 2} | settings
    return create_app(ServerSettings(**values), load=lambda: {"tiny": pipeline})


def wait_ready(client: TestClient) -> None:
    for _ in range(600):
        if client.get("/readyz").status_code == 200:
            return
        time.sleep(0.05)
    raise AssertionError("the server did not get ready")


def wait_for_reader(app: FastAPI) -> None:
    """Until somebody reads a job's events; an answer's head comes before its reader counts."""
    for _ in range(1200):
        if any(job.readers for job in list(app.state.service.jobs)):
            return
        time.sleep(0.05)
    raise AssertionError("nobody reads the events of a job")


@contextmanager
def live_server(app: FastAPI, port: int = 0) -> Iterator[str]:
    """The app on a real port of this machine; gives its address once it is ready."""
    listener = bind("127.0.0.1", port)
    service = app.state.service
    options = server_options(service.settings.limits, service.metrics)
    server = uvicorn.Server(uvicorn.Config(app, timeout_graceful_shutdown=10, **options))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    assert service.engine.settled.wait(60)
    try:
        yield address(listener)
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()
