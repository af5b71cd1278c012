"""The web page, in a real Chromium."""

from __future__ import annotations

import io
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from diffsound.audio.io import encode_audio, read_audio
from diffsound.bundle import Bundle
from diffsound.pipeline import TextToSound
from serving_support import WatchedPipeline, live_server, make_app, wait_for_reader
from support import with_defaults

pytestmark = pytest.mark.browser

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--mute-audio",
]  # fmt: skip
READY = ".card[data-state=ready]"

OpenPage = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Debian's Chromium if there is one, else the one Playwright installs.
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser, server: str) -> Iterator[OpenPage]:
    """Open the page as a new visitor; nothing it does may leave the machine or go wrong."""
    contexts = []
    problems: list[str] = []

    def open_page(url: str = server, **options: Any) -> Page:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        origin = "/".join(url.split("/")[:3])

        def check(request: Any) -> None:
            if not request.url.startswith((origin + "/", "blob:" + origin, "data:")):
                problems.append(f"a request to {request.url}")

        page.on("request", check)
        page.on("pageerror", lambda error: problems.append(f"an error: {error}"))
        page.goto(url)
        page.wait_for_selector("html[data-ready]")
        return page

    expect.set_options(timeout=60_000)
    yield open_page
    for context in contexts:
        context.close()
    assert not problems


def make(page: Page, prompt: str, takes: int = 1, seed: str = "") -> None:
    """Type and press Enter; wait for the sounds."""
    before = page.locator(READY).count()
    page.fill("#takes", str(takes))
    page.fill("#seed", seed)
    page.fill("#prompt", prompt)
    page.press("#prompt", "Enter")
    expect(page.locator(READY)).to_have_count(before + takes)


def until(page: Page, condition: str) -> None:
    """Wait until an expression is true: Playwright's own way needs `eval`, which we forbid."""
    deadline = time.monotonic() + 60
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(50)


def sounds(page: Page) -> list[dict[str, Any]]:
    """The sounds of the visit, the newest group first."""
    until(page, "document.getElementById('go').checkVisibility()")
    groups = json.loads(page.evaluate("sessionStorage.getItem('diffsound-history')"))
    return [sound for group in groups for sound in group["sounds"]]


def wave_of(server: str, sound: dict[str, Any]) -> np.ndarray:
    return read_audio(io.BytesIO(httpx.get(server + sound["url"], timeout=60).content))


def drag(page: Page, start: float, end: float) -> None:
    """Select a part of the newest sound, in shares of its length."""
    box = page.locator(".scope").first.bounding_box()
    assert box
    height = box["y"] + box["height"] / 3
    page.mouse.move(box["x"] + start * box["width"], height)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], height, steps=4)
    page.mouse.up()


def test_type_press_enter_hear(visit: OpenPage, server: str, pipeline: TextToSound) -> None:
    page = visit()
    make(page, "a dog barks", takes=2, seed="7")
    # The first take that is ready plays by itself, to its end.
    until(page, "[...document.querySelectorAll('audio')].some(a => a.ended)")
    # What comes out of the player is measured on its way to the loudspeaker.
    heard = page.evaluate(
        """async () => {
            const audio = document.querySelector('audio');
            const context = new AudioContext();
            const meter = context.createAnalyser();
            context.createMediaElementSource(audio).connect(meter).connect(context.destination);
            const samples = new Float32Array(meter.fftSize);
            let peak = 0;
            audio.currentTime = 0;
            await audio.play();
            while (!audio.ended) {
                meter.getFloatTimeDomainData(samples);
                peak = Math.max(peak, ...samples.map(Math.abs));
                await new Promise((resolve) => setTimeout(resolve, 20));
            }
            return {peak, seconds: audio.duration};
        }"""
    )
    assert heard["seconds"] == pytest.approx(1.0, abs=0.01)
    assert heard["peak"] > 0.01
    (expected,) = pipeline("a dog barks", seed=7, duration=1.0)
    expected_wave = expected.wave / max(1.0, np.abs(expected.wave).max() / 0.99)
    assert np.abs(wave_of(server, sounds(page)[0]) - expected_wave).max() < 1e-4
    assert page.locator(".seed").all_text_contents() == ["seed 7", "seed 8"]
    assert page.locator(".card").first.get_attribute("aria-label") == "a dog barks, take 1"
    assert page.locator(".spectrogram").first.evaluate("image => image.naturalWidth") > 100
    painted = "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v)"
    assert page.locator(".wave").first.evaluate(painted)


def test_the_spectrogram_shows_while_it_is_made_and_stop_stops(
    visit: OpenPage, watched: WatchedPipeline
) -> None:
    app = make_app(watched, lanes=1)
    with live_server(app) as url:
        page = visit(url)
        watched.hold_after = watched.steps + 2
        watched.gate.clear()  # until the page listens: previews are made for listeners only
        page.fill("#takes", "1")
        page.fill("#prompt", "rain")
        page.press("#prompt", "Enter")
        wait_for_reader(app)
        watched.gate.set()
        page.wait_for_selector(".making .spectrogram[src^='data:image/jpeg']")
        assert page.locator(".scope progress").evaluate("bar => bar.value") == pytest.approx(
            1 / 3, abs=0.4
        )
        page.click("#stop")
        expect(page.locator("#problem")).to_have_text("Stopped.")
        watched.hold_after = None
        watched.gate.set()
        make(page, "rain again")


def test_a_region_is_made_anew_and_the_rest_stays(visit: OpenPage, server: str) -> None:
    page = visit()
    make(page, "rain", seed="3")
    expect(page.locator("[data-edit=inpaint]")).to_be_hidden()
    drag(page, 0.4, 0.7)
    assert float(page.input_value("[name=start]")) == pytest.approx(0.4, abs=0.02)
    assert float(page.input_value("[name=end]")) == pytest.approx(0.7, abs=0.02)
    page.fill(".edit-panel [name=prompt]", "a bell")
    page.fill("#seed", "5")
    page.click("[data-edit=inpaint]")
    expect(page.locator(READY)).to_have_count(2)
    new, old = sounds(page)
    assert new["settings"]["edit"] == "inpaint"
    assert new["prompt"] == "a bell"
    before, after = wave_of(server, old), wave_of(server, new)
    assert len(before) == len(after) == 22050
    # Both files were scaled as a whole if they were above full scale.
    quiet = slice(0, int(0.38 * 22050))
    scale = np.dot(before[quiet], after[quiet]) / np.dot(before[quiet], before[quiet])
    changed = np.abs(after - scale * before)
    assert changed[quiet].max() < 1e-3
    assert changed[int(0.72 * 22050) :].max() < 1e-3
    assert changed[int(0.45 * 22050) : int(0.65 * 22050)].max() > 1e-3


def test_the_best_of_several_takes(visit: OpenPage, ranking_folder: Path) -> None:
    pipeline = TextToSound.from_pretrained(ranking_folder)
    best = pipeline("a loud dog", num_candidates=3, keep=2, seed=5, duration=1.0)
    with live_server(make_app(pipeline)) as url:
        page = visit(url)
        page.fill("#takes", "3")
        page.fill("#keep", "2")
        page.fill("#seed", "5")
        page.fill("#prompt", "a loud dog")
        page.press("#prompt", "Enter")
        expect(page.locator(READY)).to_have_count(2)
        assert page.locator(".seed").all_text_contents() == [f"seed {s.seed}" for s in best]
        expect(page.locator(".group header p")).to_contain_text("best 2 of 3")
        # More than are made cannot be kept: the browser says so, and nothing is sent.
        page.fill("#takes", "1")
        page.press("#prompt", "Enter")
        assert not page.locator("#keep").evaluate("field => field.validity.valid")
        page.wait_for_timeout(200)
        assert page.locator(".group").count() == 1


def test_a_scene_shows_its_layers(visit: OpenPage, tiny_bundle: Bundle, tmp_path: Path) -> None:
    pipeline = TextToSound(with_defaults(tiny_bundle, layered=True, duration=3.0))
    with live_server(make_app(pipeline)) as url:
        page = visit(url)
        page.fill("#takes", "1")
        page.fill("#prompt", "rain, then a dog barks far away")
        page.press("#prompt", "Enter")
        expect(page.locator(READY)).to_have_count(1)
        layers = page.locator(".layers li")
        expect(layers).to_have_count(2)
        expect(layers.nth(1)).to_contain_text("a dog barks, far away")
        with page.expect_download() as wanted:
            layers.nth(0).get_by_role("button").click()
        wanted.value.save_as(tmp_path / "stem.wav")
        assert wanted.value.suggested_filename.endswith("-layer1.wav")
        assert np.abs(read_audio(tmp_path / "stem.wav", 22050)).max() > 0
        page.fill("#prompt", "a dog barks")
        page.press("#prompt", "Enter")
        expect(page.locator(READY)).to_have_count(2)
        expect(page.locator(".layers:visible")).to_have_count(1)


def test_a_bundle_that_cannot_choose_offers_no_choice(visit: OpenPage) -> None:
    expect(visit().locator("#keep")).to_be_hidden()


def test_extend_and_vary(visit: OpenPage) -> None:
    page = visit()
    make(page, "rain")
    page.click(".edit")
    page.fill("[name=seconds]", "0.5")
    page.click("[data-edit=extend]")
    expect(page.locator(READY)).to_have_count(2)
    assert sounds(page)[0]["seconds"] == pytest.approx(1.5)
    page.click(".edit >> nth=0")
    page.click("[data-edit=vary] >> nth=0")
    expect(page.locator(READY)).to_have_count(3)
    assert sounds(page)[0]["settings"]["edit"] == "vary"


@pytest.mark.parametrize("format", ["wav", "flac", "ogg", "mp3"])
def test_download(visit: OpenPage, tmp_path: Path, format: str) -> None:
    page = visit()
    make(page, "Rain, on a roof!", seed="3")
    page.click(".download summary")
    with page.expect_download() as download:
        page.click(f"[data-format={format}]")
    assert download.value.suggested_filename == f"rain-on-a-roof-3.{format}"
    path = tmp_path / f"x.{format}"
    download.value.save_as(path)
    wave = read_audio(path)
    assert 22050 <= len(wave) < 22050 + 3500
    assert np.abs(wave).max() > 0.001


def test_an_uploaded_clip_can_be_edited_and_a_bad_one_is_explained(
    visit: OpenPage, tmp_path: Path
) -> None:
    page = visit()
    bad = tmp_path / "bad.wav"
    bad.write_bytes(b"this is no audio")
    page.set_input_files("#upload", bad)
    expect(page.locator("#problem")).to_contain_text("cannot read the upload")
    good = tmp_path / "tone.flac"
    times = np.arange(44100) / 44100
    good.write_bytes(encode_audio(0.5 * np.sin(2 * np.pi * 440 * times), 44100, "flac"))
    page.set_input_files("#upload", good)
    expect(page.locator(READY)).to_have_count(1)
    expect(page.locator("#problem")).to_be_hidden()
    page.fill("#takes", "1")
    page.click(".edit")
    page.click("[data-edit=vary]")  # without a text: the field asks for one
    expect(page.locator(".edit-panel [name=prompt]")).to_be_focused()
    page.fill(".edit-panel [name=prompt]", "a bell")
    page.click("[data-edit=vary]")
    expect(page.locator(READY)).to_have_count(2)


def test_mistakes_are_explained(visit: OpenPage) -> None:
    page = visit()
    page.fill("#prompt", "   ")
    page.press("#prompt", "Enter")
    expect(page.locator("#problem")).to_contain_text("Describe a sound first")
    # What the form lets through and the server does not.
    page.fill("#prompt", "rain")
    page.click("#more > summary")
    page.select_option("[name=sampler]", "official")
    page.fill("[name=temperature]", "0.5")
    page.press("#prompt", "Enter")
    expect(page.locator("#problem")).to_contain_text("official")
    expect(page.locator(".card .problem")).to_have_count(2)
    page.select_option("[name=sampler]", "")
    make(page, "rain")
    expect(page.locator("#problem")).to_be_hidden()


def test_two_visitors_at_once(visit: OpenPage) -> None:
    first, second = visit(), visit()
    for page, prompt in ((first, "a dog"), (second, "a cat")):
        page.fill("#prompt", prompt)
        page.press("#prompt", "Enter")
    for page, prompt in ((first, "a dog"), (second, "a cat")):
        expect(page.locator(READY)).to_have_count(2)
        assert {sound["prompt"] for sound in sounds(page)} == {prompt}


def test_a_shared_link_makes_the_sound_again(visit: OpenPage, server: str) -> None:
    page = visit()
    page.click("#more > summary")
    page.fill("[name=guidance_scale]", "3.5")
    make(page, "füß & #1 ☂?", seed="11")
    page.click(".share")
    link = page.input_value(".link")
    assert json.loads(page.input_value(".json"))["guidance_scale"] == 3.5
    other = visit(link)
    expect(other.locator(READY)).to_have_count(1)
    (original,), (copy,) = sounds(page), sounds(other)
    assert copy["prompt"] == "füß & #1 ☂?"
    assert np.array_equal(wave_of(server, original), wave_of(server, copy))


def test_history_survives_a_reload(visit: OpenPage) -> None:
    page = visit()
    make(page, "first")
    make(page, "second")
    sounds(page)
    page.reload()
    expect(page.locator(READY)).to_have_count(2)
    assert page.locator(".group h2").all_text_contents() == ["second", "first"]


def test_by_keyboard_alone(visit: OpenPage) -> None:
    page = visit()
    page.keyboard.type("rain")  # the prompt has the focus
    page.keyboard.press("Enter")
    expect(page.locator(READY)).to_have_count(2)
    until(page, "[...document.querySelectorAll('audio')].some(a => a.ended)")
    page.locator(".scope").first.focus()
    page.keyboard.press("Home")
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    for _ in range(3):
        page.keyboard.press("Shift+ArrowRight")
    assert page.input_value("[name=start] >> nth=0") == "0.20"
    assert page.input_value("[name=end] >> nth=0") == "0.50"
    page.keyboard.press(" ")
    until(page, "document.querySelector('audio').currentTime > 0.25")
    page.keyboard.press("Escape")
    assert page.input_value("[name=start] >> nth=0") == ""
    page.keyboard.press("/")
    expect(page.locator("#prompt")).to_be_focused()


def test_everything_has_a_name(visit: OpenPage) -> None:
    page = visit()
    make(page, "rain")
    drag(page, 0.2, 0.5)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('body input, textarea, select, button, summary')]
            .filter(one => one.checkVisibility() && !one.labels?.length
                && !one.getAttribute('aria-label') && !one.textContent.trim())
            .map(one => one.outerHTML)"""
    )
    assert nameless == []
    assert page.locator("img:not([alt])").count() == 0


def test_phone_and_dark_mode(visit: OpenPage) -> None:
    colours = []
    for scheme in ("light", "dark"):
        page = visit(viewport={"width": 360, "height": 740}, color_scheme=scheme, has_touch=True)
        make(page, "rain")
        drag(page, 0.2, 0.5)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        small = page.evaluate(
            """() => [...document.querySelectorAll('.bar button, .bar summary, .prompt button')]
                .filter(one => one.checkVisibility())
                .filter(one => one.getBoundingClientRect().height < 36).length"""
        )
        assert small == 0
        colours.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert colours[0] != colours[1]


def test_a_server_with_keys_asks_once(
    visit: OpenPage, browser: Browser, pipeline: TextToSound
) -> None:
    with live_server(make_app(pipeline, api_keys=("open sesame",))) as url:
        page = browser.new_page()
        page.set_default_timeout(60_000)
        page.goto(url)
        page.fill("#key", "open sesame")
        page.keyboard.press("Enter")
        page.wait_for_selector("html[data-ready]")
        make(page, "rain")
        page.close()


def test_the_card_and_the_api_say_how_well_the_prompt_is_known(
    visit: OpenPage, knowing: Bundle
) -> None:
    with live_server(make_app(TextToSound(knowing))) as url:
        page = visit(url)
        make(page, "quantum entanglement")
        line = page.locator(".card .coverage").first
        expect(line).to_be_visible()
        expect(line).to_contain_text("far from anything it has heard; nearest: “")
        asked = {"prompt": "a dog barks", "duration": 0.5}
        wanted = {"Accept": "application/json"}
        answer = httpx.post(f"{url}/v1/generate", json=asked, headers=wanted, timeout=60).json()
        (sound,) = answer["sounds"]
        assert sound["coverage"]["verdict"] == "known"
        assert sound["coverage"]["nearest"][0] == {"caption": "a dog barks", "similarity": 1.0}


def test_the_api_page(visit: OpenPage, server: str, browser: Browser) -> None:
    page = browser.new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"{server}/docs")
    page.click("summary:has-text('/v1/edit/inpaint')")
    expect(page.locator("details[open] caption").first).to_have_text("Body, multipart/form-data")
    expect(page.locator("details[open] pre")).to_contain_text("-F clip='@clip.wav'")
    assert all(url.startswith(server) for url in requests)
    page.close()
