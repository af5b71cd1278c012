"""A page whose every text is hostile, and the check that nothing of it runs."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page

# Leaves every context a page has (text, attribute, style, script, title) and then runs.
HOSTILE = (
    "\"'></title></style></script><script>window.hacked = 1</script>"
    "<img src=x onerror='window.hacked = 1'><svg onload=\"window.hacked = 1\">{{ 7 * 7 }}"
)


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
