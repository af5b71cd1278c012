"""The page for everyone: contrast, names, keyboard alone, phones, less motion; and its weight."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from diffsound.serving.app import WEB
from web_support import PATIENCE, READY, OpenPage, drag, make, menu, selection, until

pytestmark = pytest.mark.browser

SCHEMES = ("light", "dark")
PHONE = {"width": 390, "height": 844}
MOST_SCRIPT = 400_000  # bytes
MOST_SCRIPT_AT_FIRST = 30_000  # without which the prompt does not work

# Every visible text with its colours as they come out, layers of background under it mixed.
COLOURS = r"""() => {
    const canvas = document.createElement('canvas');
    canvas.width = canvas.height = 1;
    const context = canvas.getContext('2d', {willReadFrequently: true});
    const rgba = (colour) => {
        context.clearRect(0, 0, 1, 1);
        context.fillStyle = colour;
        context.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
        return [r, g, b, a / 255];
    };
    const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3]));
    const backdrop = (element) => {
        const layers = [];
        for (let one = element; one; one = one.parentElement) {
            layers.push(rgba(getComputedStyle(one).backgroundColor));
        }
        return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
    };
    const found = [];
    for (const element of document.querySelectorAll('body *')) {
        const own = [...element.childNodes].filter(node => node.nodeType === Node.TEXT_NODE);
        const text = own.map(node => node.data).join('');
        const shown = text.trim() || element.placeholder || '';
        const box = element.getBoundingClientRect();
        if (!shown || !element.checkVisibility() || box.width < 2) continue;
        if (element.matches(':disabled, :disabled *')) continue;
        const below = backdrop(element);
        const style = element.placeholder && !element.value
            ? getComputedStyle(element, '::placeholder') : getComputedStyle(element);
        found.push({
            text: shown.trim().slice(0, 40), ink: over(rgba(style.color), below), paper: below,
            size: parseFloat(style.fontSize), weight: Number(style.fontWeight),
        });
    }
    return found;
}"""


def luminance(colour: list[float]) -> float:
    """WCAG 2.2's relative luminance of an sRGB colour, 0 to 255 each."""
    shares = [value / 255 for value in colour]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: list[float], other: list[float]) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def low_contrast(page: Page) -> list[str]:
    """Texts below WCAG's level AA: 4.5, or 3 for large ones."""
    problems = []
    for text in page.evaluate(COLOURS):
        large = text["size"] >= 24 or (text["size"] >= 18.66 and text["weight"] >= 700)
        ratio = contrast(text["ink"], text["paper"])
        if ratio < (3 if large else 4.5):
            problems.append(f"{text['text']!r}: {ratio:.2f}")
    return problems


def nameless(page: Page) -> list[str]:
    """Visible controls without a name for assistive technology."""
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll('input, textarea, select, button, [tabindex]')]
            .filter(one => one.checkVisibility() && !one.labels?.length
                && !one.getAttribute('aria-label') && !one.getAttribute('aria-labelledby')
                && !one.textContent.trim())
            .map(one => one.outerHTML)"""
    )
    return found


def test_contrast_is_computed_as_wcag_says() -> None:
    assert contrast([0, 0, 0], [255, 255, 255]) == pytest.approx(21)
    assert contrast([119, 119, 119], [255, 255, 255]) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_text_can_be_read(visit: OpenPage, scheme: str) -> None:
    page = visit(color_scheme=scheme)
    page.fill("#prompt", " ")
    page.press("#prompt", "Enter")
    expect(page.locator("#problem")).to_be_visible()
    assert low_contrast(page) == []
    make(page, "rain", takes=2)
    drag(page, 0.2, 0.5, top=0.2, bottom=0.7)
    page.click(".card .favourite >> nth=0")
    page.click(".card .loop >> nth=0")
    page.click(".compare-button >> nth=0")
    page.click(".more >> nth=0")
    assert len(page.evaluate(COLOURS)) > 30
    assert low_contrast(page) == []
    page.keyboard.press("Escape")
    page.click("#open-settings")
    assert low_contrast(page) == []
    page.keyboard.press("Escape")
    menu(page.locator(".card").first, "Copy as…")
    assert low_contrast(page) == []


def test_everything_has_a_name(visit: OpenPage) -> None:
    page = visit()
    make(page, "rain", takes=2)
    drag(page, 0.2, 0.5)
    page.click(".compare-button >> nth=0")
    assert nameless(page) == []
    page.click("#open-settings")
    assert nameless(page) == []
    page.keyboard.press("Escape")
    menu(page.locator(".card").first, "Copy as…")
    assert nameless(page) == []
    assert page.locator("img:not([alt])").count() == 0
    assert page.evaluate("new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size") == (
        page.locator("[id]").count()
    )


def test_settings_have_plain_names_beside_the_technical_ones(visit: OpenPage) -> None:
    page = visit()
    page.click("#open-settings")
    names = {
        "guidance_scale": ("Closeness to the text", "guidance"),
        "temperature": ("Variety", "temperature"),
        "num_inference_steps": ("Effort", "steps"),
        "seed": ("Starting point", "seed"),
    }
    for field, (plain, technical) in names.items():
        label = page.locator(f"label:has([name={field}]) > span")
        expect(label).to_contain_text(plain)
        expect(label.locator("small")).to_have_text(technical)


def test_by_keyboard_alone(visit: OpenPage) -> None:
    page = visit()
    page.keyboard.type("rain")  # the prompt has the focus
    page.keyboard.press("Enter")
    expect(page.locator(READY)).to_have_count(2)
    until(page, "[...document.querySelectorAll('.card audio')].some(a => a.ended)")
    # Tab leads from the prompt to the first sound's picture.
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('scope')"):
            break
    expect(page.locator(".scope").first).to_be_focused()
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) != "none"
    page.keyboard.press("Home")
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    for _ in range(3):
        page.keyboard.press("Shift+ArrowRight")
    assert selection(page) == {"start": 0.2, "end": 0.5}
    page.keyboard.press(" ")
    until(page, "document.querySelector('.card audio').currentTime > 0.25")
    until(page, "document.querySelector('.card audio').paused")
    page.keyboard.press("l")
    expect(page.locator(".card .loop").first).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Escape")
    assert selection(page) == {}
    # A menu by arrow keys, and out of it with Escape.
    page.locator(".more").first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("menuitem", name="Copy as…")).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("menuitem", name="Rename")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator(".more").first).to_be_focused()
    page.keyboard.press("/")
    expect(page.locator("#prompt")).to_be_focused()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_phone_shows_it_all(visit: OpenPage, scheme: str) -> None:
    page = visit(viewport=PHONE, color_scheme=scheme, has_touch=True)
    make(page, "rain", takes=2)
    # Results first: the first waveform is on the screen without scrolling.
    page.evaluate("scrollTo(0, 0)")
    box = page.locator(".scope").first.bounding_box()
    assert box
    assert box["y"] + 96 <= PHONE["height"]
    drag(page, 0.2, 0.5)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    fits = "bars => bars.every(bar => bar.scrollWidth <= bar.clientWidth)"
    assert page.locator(".bar").evaluate_all(fits)
    small = page.evaluate(
        """() => [...document.querySelectorAll('.bar button, .card-head button, .tools button')]
            .filter(one => one.checkVisibility())
            .filter(one => one.getBoundingClientRect().height < 31).map(one => one.outerHTML)"""
    )
    assert small == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    bright = sum(int(value) for value in re.findall(r"\d+", background)[:3]) > 380
    assert bright == (scheme == "light")


def test_less_motion_where_it_is_asked_for(visit: OpenPage) -> None:
    moving = """() => [...document.querySelectorAll('*')].filter(one =>
        parseFloat(getComputedStyle(one).transitionDuration) > 0
        || getComputedStyle(one).animationName !== 'none'
        || getComputedStyle(one).scrollBehavior === 'smooth').length"""
    page = visit(reduced_motion="reduce")
    make(page, "rain")
    page.click("#open-settings")
    assert page.evaluate(moving) == 0
    assert visit(reduced_motion="no-preference").evaluate(moving) > 0


def imported(script: Path) -> set[Path]:
    """The modules that a module needs before it runs, and theirs."""
    found = set()
    for name in re.findall(r'^import (?:.* from )?"([^"]+)"', script.read_text("utf-8"), re.M):
        module = (script.parent / name).resolve()
        found |= {module, *imported(module)}
    return found


def test_scripts_are_light_and_those_of_the_first_second_are_asked_for_at_once(server: str) -> None:
    folders = (WEB / "js", WEB / "vendor" / "wavesurfer")
    scripts = [path for folder in folders for path in folder.glob("*.js")]
    scripts.remove(WEB / "js" / "docs.js")  # of the API's page
    assert sum(path.stat().st_size for path in scripts) <= MOST_SCRIPT
    first = imported(WEB / "js" / "main.js")
    assert sum(path.stat().st_size for path in first) <= MOST_SCRIPT_AT_FIRST
    preloaded = re.findall(r'modulepreload" href="/static/([^"]+)"', httpx.get(server).text)
    assert sorted(preloaded) == sorted(str(path.relative_to(WEB)) for path in first)


def test_the_prompt_works_before_the_rest_of_the_page_is_there(
    browser: Browser, server: str
) -> None:
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    held: list[Route] = []
    page.route("**/studio.js", lambda route: held.append(route))  # does not arrive yet
    page.goto(server)
    page.wait_for_selector("html[data-ready]")
    page.fill("#takes", "1")
    page.fill("#prompt", "rain")
    page.press("#prompt", "Enter")
    assert page.locator(".card").count() == 0
    (route,) = held
    route.continue_()
    expect(page.locator(READY)).to_have_count(1)
    page.close()


def test_a_page_that_arrived_in_part_says_so(browser: Browser, server: str) -> None:
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    page.route("**/studio.js", lambda route: route.abort())
    page.goto(server)
    expect(page.locator("#problem")).to_contain_text("reload the page")
    page.fill("#prompt", "rain")
    expect(page.locator("#problem")).to_be_hidden()
    page.press("#prompt", "Enter")
    expect(page.locator("#problem")).to_contain_text("reload the page")
    page.close()


def test_the_policy_allows_no_inline_script_and_a_new_nonce_each_time(server: str) -> None:
    answers = [httpx.get(server) for _ in range(2)]
    policies = [answer.headers["Content-Security-Policy"] for answer in answers]
    nonces = [re.findall(r"'nonce-([\w-]+)'", policy) for policy in policies]
    assert nonces[0] != nonces[1]
    for policy, (nonce,), answer in zip(policies, nonces, answers, strict=True):
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert answer.text.count(nonce) == 1
        assert not re.search(r"<style|\sstyle=|<script(?![^>]*src=)|\son\w+=", answer.text)


def test_vendored_scripts_come_with_their_licence() -> None:
    folder = Path(WEB) / "vendor" / "wavesurfer"
    assert "BSD 3-Clause" in (folder / "LICENSE").read_text(encoding="utf-8")
    for path in folder.glob("*.js"):
        assert "http" not in re.sub(r"http://www\.w3\.org", "", path.read_text(encoding="utf-8"))
