"""A real Chromium for tests of pages, and text that would take one over if it were markup."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

# Leaves every context a page has (text, attribute, style, script, title) and then runs.
HOSTILE = (
    "\"'></title></style></script><script>window.hacked = 1</script>"
    "<img src=x onerror='window.hacked = 1'><svg onload=\"window.hacked = 1\">{{ 7 * 7 }}"
)


@contextmanager
def open_page() -> Iterator[Page]:
    """A new page in Debian's Chromium if there is one, else in the one Playwright installs."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            page = browser.new_page()
            page.set_default_timeout(20_000)
            yield page
        finally:
            browser.close()


def assert_inert(page: Page, file: Path) -> None:
    """Open a page whose every text is HOSTILE: the text shows, nothing of it becomes markup."""
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text))
    page.goto(file.as_uri())
    page.wait_for_timeout(200)  # an onerror handler would run by now
    assert page.evaluate("window.hacked") is None
    assert page.locator("[onerror], [onload], a[href^='javascript:' i]").count() == 0
    assert HOSTILE in str(page.locator("body").text_content())
    assert problems == []
