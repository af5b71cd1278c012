"""What the tests of the web page share: visitors and what they do."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import httpx
import numpy as np
from playwright.sync_api import Browser, Locator, Page, expect

from diffsound.audio.io import read_audio

READY = ".card[data-state=ready]"
PATIENCE = 120_000  # milliseconds: the machine may be busy with other tests
WAVE_HEIGHT, SPECTROGRAM_HEIGHT = 96, 136  # as in scope.js


class OpenPage(Protocol):
    def __call__(self, url: str | None = None, **options: Any) -> Page: ...


@contextmanager
def visits(browser: Browser, server: str) -> Iterator[OpenPage]:
    """A way to open the page; at the end no page may have had an error or asked anyone else."""
    contexts = []
    problems: list[str] = []

    def open_page(url: str | None = None, **options: Any) -> Page:
        url = url or server
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        watch(page, url, problems)
        page.goto(url)
        page.wait_for_selector("html[data-ready]")
        return page

    expect.set_options(timeout=PATIENCE)
    yield open_page
    for context in contexts:
        context.close()
    assert not problems


def watch(page: Page, url: str, problems: list[str]) -> None:
    """Note requests to other machines, script errors and breaches of the content policy."""
    page.set_default_timeout(PATIENCE)
    origin = "/".join(url.split("/")[:3])

    def check(request: Any) -> None:
        if not request.url.startswith((origin + "/", "blob:" + origin, "data:")):
            problems.append(f"a request to {request.url}")

    def read(message: Any) -> None:
        if "Content Security Policy" in message.text:
            problems.append(message.text)

    page.on("request", check)
    page.on("console", read)
    page.on("pageerror", lambda error: problems.append(f"an error: {error}"))


def make(page: Page, prompt: str, takes: int = 1, **settings: str) -> None:
    """Type and press Enter; wait for the sounds."""
    before = page.locator(READY).count()
    page.fill("#takes", str(takes))
    choose(page, **settings)
    page.fill("#prompt", prompt)
    page.press("#prompt", "Enter")
    expect(page.locator(READY)).to_have_count(before + takes)
    expect(page.locator("#go")).to_be_visible()


def choose(page: Page, **settings: str) -> None:
    """Settings of the drawer, by the names of the API."""
    if not settings:
        return
    page.click("#open-settings")
    for name, value in settings.items():
        field = page.locator(f"#settings [name={name}]")
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
    page.click("#settings footer .primary")


def until(page: Page, condition: str) -> None:
    """Wait until an expression is true: Playwright's own way needs `eval`, which we forbid."""
    deadline = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(50)


def entries(page: Page) -> list[dict[str, Any]]:
    """What the library keeps, the newest group first, without the files."""
    found: list[dict[str, Any]] = page.evaluate(
        """() => new Promise((resolve, reject) => {
            const opened = indexedDB.open('diffsound');
            opened.onerror = () => reject(opened.error);
            opened.onsuccess = () => {
                const all = opened.result.transaction('sounds').objectStore('sounds').getAll();
                all.onsuccess = () => {
                    opened.result.close();
                    resolve(all.result.map(({blob, ...rest}) => ({...rest, bytes: blob.size})));
                };
            };
        })"""
    )
    return sorted(found, key=lambda entry: (-entry["created"], entry["take"]))


def sounds(page: Page) -> list[dict[str, Any]]:
    """The sounds of the library as the API describes them, the newest group first."""
    expect(page.locator("#go")).to_be_visible()
    return [entry["sound"] for entry in entries(page)]


def wave_of(server: str, sound: dict[str, Any]) -> np.ndarray:
    return read_audio(io.BytesIO(httpx.get(server + sound["url"], timeout=60).content))


def drag(
    page: Page, start: float, end: float, top: float | None = None, bottom: float | None = None
) -> None:
    """Select a part of the newest sound, in shares of its length.

    On the waveform; or on the spectrogram from `top` to `bottom`, in shares of its height.
    """
    scope = page.locator(".scope").first
    scope.scroll_into_view_if_needed()
    box = scope.bounding_box()
    assert box
    heights = [WAVE_HEIGHT / 2] * 2
    if top is not None and bottom is not None:
        heights = [WAVE_HEIGHT + share * SPECTROGRAM_HEIGHT for share in (top, bottom)]
    page.mouse.move(box["x"] + start * box["width"], box["y"] + heights[0])
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], box["y"] + heights[1], steps=6)
    page.mouse.up()


def selection(page: Page) -> dict[str, float]:
    """The fields of the newest sound's selection that are filled."""
    names = ("start", "end", "low", "high")
    values = {name: page.input_value(f".edit-panel [name={name}] >> nth=0") for name in names}
    return {name: float(value) for name, value in values.items() if value}


def menu(card: Locator, item: str) -> None:
    """Choose an item of a card's menu."""
    card.locator(".more").click()
    card.get_by_role("menuitem", name=item, exact=True).click()
