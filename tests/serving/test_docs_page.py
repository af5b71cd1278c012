"""The API's page at /docs, in a real Chromium: every operation can be tried on it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from diffsound.audio.io import encode_audio
from diffsound.generation.pipeline import TextToSound
from serving_support import live_server, make_app

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def keyed(pipeline: TextToSound) -> Iterator[str]:
    """A server that asks for a key."""
    with live_server(make_app(pipeline, api_keys=("secret",))) as url:
        yield url


@pytest.fixture
def page(browser: Browser, keyed: str) -> Iterator[Page]:
    """The page, with its key given; nothing it does may leave the machine or go wrong."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(60_000)
    problems: list[str] = []

    def check(request: Any) -> None:
        if not request.url.startswith((keyed, "blob:", "data:")):
            problems.append(f"asked for {request.url}")

    page.on("request", check)
    page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"{keyed}/docs")
    page.get_by_role("button", name="Authorize").click()
    page.get_by_label("auth-bearer-value").fill("secret")
    page.get_by_label("Apply credentials").click()
    page.get_by_role("button", name="Close").click()
    yield page
    context.close()
    assert problems == []


def open_operation(page: Page, name: str) -> Any:
    block = page.locator(f"#operations-{name}")
    block.locator(".opblock-summary-control").click()
    return block


def execute(block: Any) -> Any:
    block.get_by_role("button", name="Execute").click()
    answer = block.locator(".live-responses-table .response")
    expect(answer.locator(".response-col_status")).to_contain_text("200", timeout=60_000)
    return answer


def length(answer: Any) -> float:
    """Seconds of the sound that the answer plays."""
    audio = answer.locator("audio")
    loaded = "audio => new Promise(go => audio.readyState ? go() : audio.onloadedmetadata = go)"
    audio.evaluate(loaded)
    return float(audio.evaluate("audio => audio.duration"))


def test_a_sound_is_made_and_played(page: Page) -> None:
    """The example as it stands, with one press of a button."""
    answer = execute(open_operation(page, "sounds-generate_v1_generate_post"))
    assert length(answer) == pytest.approx(2, abs=0.01)


def test_a_form_asks_for_nothing_but_what_it_needs(page: Page) -> None:
    block = open_operation(page, "sounds-vary_v1_edit_vary_post")
    clip = encode_audio(np.sin(np.arange(22050) / 10), 22050, "wav")
    block.locator("input[type=file]").set_input_files(
        {"name": "clip.wav", "mimeType": "audio/wav", "buffer": io.BytesIO(clip).getvalue()}
    )
    assert length(execute(block)) == pytest.approx(1, abs=0.01)
