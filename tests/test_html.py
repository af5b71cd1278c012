"""Pages: escaped values, and a policy that stops what escaping might miss."""

from __future__ import annotations

import base64
import hashlib
import re
from html import unescape
from pathlib import Path

import jinja2
import pytest
from playwright.sync_api import Page

from browser_support import HOSTILE, assert_inert
from diffsound import html


def render_text(source: str, **values: object) -> str:
    """A template that is not a file, in the package's own environment."""
    template = html._environment().from_string(f'{{% extends "base.html" %}}{source}')
    policy = html.content_policy(script="window.ours = 1", style="p { color: red }")
    return template.render(
        policy=policy, style="p { color: red }", script="window.ours = 1", title="t", **values
    )


def test_values_are_escaped() -> None:
    text = render_text("{% block body %}<p title='{{ value }}'>{{ value }}</p>{% endblock %}",
                       value=HOSTILE)  # fmt: skip
    assert "<img" not in text
    assert "onerror='" not in text


def test_a_missing_value_is_an_error_not_an_empty_place() -> None:
    with pytest.raises(jinja2.UndefinedError):
        render_text("{% block body %}{{ value }}{% endblock %}")


def test_the_policy_names_the_hash_of_what_is_in_the_page() -> None:
    page = html.render(
        "data.html", styles=("page.css", "data.css"), scripts=("data.js",), title="t",
        facts={}, charts={}, rejected=[], rejected_by_reason={}, duplicates=[], across_splits=0,
        notes=[], listed=1, clips=[], total=0,
    )  # fmt: skip
    policy = unescape(re.findall(r'Content-Security-Policy" content="([^"]+)"', page)[0])
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.browser
def test_the_policy_stops_markup_that_was_not_escaped(page: Page, tmp_path: Path) -> None:
    text = render_text(
        "{% block body %}<p id='p'>x</p>{{ value | safe }}{% endblock %}", value=HOSTILE
    )
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_timeout(200)
    assert page.locator("img[onerror]").count() == 1  # the markup is there …
    assert page.evaluate("window.hacked") is None  # … and does nothing
    assert page.evaluate("window.ours") == 1
    assert page.locator("#p").evaluate("e => getComputedStyle(e).color") == "rgb(255, 0, 0)"


@pytest.mark.browser
def test_the_inertness_check_can_fail(page: Page, tmp_path: Path) -> None:
    def verdict(page: Page, body: str) -> bool:
        (tmp_path / "page.html").write_text(body, encoding="utf-8")
        try:
            assert_inert(page, tmp_path / "page.html")
        except AssertionError:
            return False
        return True

    assert not verdict(page, f"<body>{HOSTILE}</body>")
    assert not verdict(page, "<body>nothing hostile is shown</body>")
