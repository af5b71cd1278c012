"""A server over the tiny bundle, in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from diffsound.bundle import Bundle
from diffsound.pipeline import TextToSound
from serving_support import HOST, WatchedPipeline, live_server, make_app, wait_ready


@pytest.fixture
def watched(tiny_bundle: Bundle) -> WatchedPipeline:
    return WatchedPipeline(tiny_bundle)


@pytest.fixture(scope="session")
def app(pipeline: TextToSound) -> FastAPI:
    return make_app(pipeline)


@pytest.fixture(scope="session")
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, base_url=f"http://{HOST}") as client:
        wait_ready(client)
        yield client


@pytest.fixture(scope="session")
def server(pipeline: TextToSound) -> Iterator[str]:
    """The address of a server on a real port."""
    with live_server(make_app(pipeline)) as url:
        yield url
