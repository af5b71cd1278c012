"""The listening test as a listener meets it: a real browser, a reload, a lost connection."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from playwright.sync_api import Page

from diffsound.evaluation.listening import ListeningServer, build_test, read_key, read_ratings
from listening_support import make_runs

pytestmark = pytest.mark.browser


def grade(page: Page, sound: int, value: int) -> None:
    card = page.locator(".sound").nth(sound)
    for row in range(3):
        card.locator("fieldset").nth(row).get_by_label(str(value)).check()


def names(page: Page) -> list[str]:
    return [str(card.get_attribute("id")) for card in page.locator(".sound").all()]


def test_a_listener_from_begin_to_end(page: Page, tmp_path: Path) -> None:
    folder = build_test(tmp_path / "mos", make_runs(tmp_path), texts=2).parent
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    with ListeningServer(folder, port=0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            page.goto(server.url)
            page.get_by_role("button", name="Begin").click()
            first = names(page)
            assert len(first) == 3
            assert "</script>" in (page.locator("#sentence").text_content() or "")
            duration = (
                "a => new Promise(r => { a.onloadedmetadata = () => r(a.duration); a.load() })"
            )
            assert page.locator("audio").first.evaluate(duration) == pytest.approx(0.5, abs=0.1)
            assert page.get_by_role("button", name="Next").is_disabled()
            grade(page, 0, 4)
            page.locator("#state", has_text="Everything is saved.").wait_for()

            page.reload()
            assert names(page) == first
            assert page.locator("input:checked").count() == 3

            page.context.set_offline(True)
            grade(page, 1, 2)
            grade(page, 2, 0)
            page.locator("#state", has_text="Not sent yet").wait_for()
            page.get_by_role("button", name="Next").click()
            page.context.set_offline(False)
            for sound in range(3):
                grade(page, sound, 5)
            page.get_by_role("button", name="Next").click()
            page.get_by_role("heading", name="Thank you!").wait_for()
            page.locator("#sent", has_text="Everything is saved.").wait_for()
            with page.expect_download() as download:
                page.get_by_role("button", name="Download").click()
            offline = Path(download.value.path()).read_text(encoding="utf-8")
        finally:
            server.shutdown()
            thread.join()
    ((kept,), failed) = read_ratings(folder)
    assert not failed
    assert not problems
    assert set(kept.ratings) == set(read_key(folder).clips)
    assert [kept.ratings[name].fidelity for name in first] == [4, 2, 0]
    assert kept.model_validate_json(offline) == kept
    assert kept.ratings[first[0]].at <= time.time() * 1000
