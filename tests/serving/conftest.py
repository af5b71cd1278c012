"""A server over the tiny bundle, in this process, and visitors of the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from playwright.sync_api import Browser

from diffsound.generation.pipeline import TextToSound
from diffsound.model.bundle import Bundle
from serving_support import HOST, WatchedPipeline, live_server, make_app, wait_ready
from web_support import OpenPage, visits


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


@pytest.fixture
def visit(browser: Browser, server: str) -> Iterator[OpenPage]:
    """Open the page as a new visitor; nothing it does may leave the machine or go wrong."""
    with visits(browser, server) as open_page:
        yield open_page
