"""Take the pictures of the web page that README and docs show.

    python tools/page_pictures.py            # needs Chromium and Playwright

The bundled model is served on a free port of this machine, and a browser does what a visitor would:
prompt and seed are fixed, so the pictures change only with the page and the model.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from diffsound.files import atomic_write

FOLDER = Path(__file__).parents[1] / "docs" / "page"
PROMPT, SEED = "rain falls, then a dog barks", "7"
DESKTOP = {"viewport": {"width": 1440, "height": 1120}}
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 1.5, "has_touch": True}
PATIENCE = 600_000  # milliseconds: the machine may be busy
ADDRESS = r"http://[\d.:]+"


@dataclass(frozen=True)
class Picture:
    """A picture: its file's name, the visitor's screen, and what the visitor does first."""

    name: str
    screen: dict[str, object]
    act: Callable[[Page], None]

    @property
    def scheme(self) -> str:
        return "dark" if self.name.endswith("dark") else "light"


@contextmanager
def server() -> Iterator[str]:
    """`diffsound serve` with the bundled model; gives its address."""
    command = [sys.executable, "-m", "diffsound", "serve", "--port", "0", "--timeout", "600"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        url = next(found[0] for line in process.stderr if (found := re.search(ADDRESS, line)))
        threading.Thread(target=process.stderr.read, daemon=True).start()  # or the log fills up
        yield url
    finally:
        process.terminate()
        process.wait()


def make(page: Page) -> None:
    """Two takes; the first one has been heard to its end."""
    page.click("#open-settings")
    page.fill("#seed", SEED)
    page.click("#settings footer .primary")
    page.fill("#prompt", PROMPT)
    page.press("#prompt", "Enter")
    expect(page.locator(".card[data-state=ready]")).to_have_count(2)
    expect(page.locator(".card.playing")).to_have_count(0)
    page.evaluate("document.activeElement.blur()")
    page.evaluate("scrollTo(0, 0)")


def edit(page: Page) -> None:
    """A box on the first take's spectrogram, to make a part of it again."""
    make(page)
    page.locator(".favourite").first.click()
    box = page.locator(".scope").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 145)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.87 * box["width"], box["y"] + 205, steps=5)
    page.mouse.up()
    page.mouse.move(5, 5)
    page.fill(".edit-panel [name=prompt] >> nth=0", "a small dog barks")
    page.evaluate("document.activeElement.blur()")
    page.evaluate("scrollTo(0, 0)")


def settings(page: Page) -> None:
    """The drawer, at the settings of files."""
    make(page)
    page.locator(".download").first.click()
    page.locator(".file-settings").first.click()
    page.select_option("#settings [name=rate]", "48000")
    page.select_option("#settings [name=channels]", "2")
    page.select_option("#settings [name=bit_depth]", "24")
    page.evaluate("document.activeElement.blur()")


def download(page: Page) -> None:
    """What each format gives."""
    make(page)
    page.locator(".download").first.click()
    page.evaluate("document.querySelector('.file-settings').scrollIntoView({block: 'end'})")
    page.evaluate("scrollBy(0, 24)")


def look(page: Page) -> None:
    """Nothing: the page as it opens."""
    page.evaluate("document.activeElement.blur()")


PICTURES = (
    Picture("desktop-light", DESKTOP, edit),
    Picture("desktop-examples", DESKTOP, look),
    Picture("desktop-dark", DESKTOP, settings),
    Picture("phone-light", PHONE, look),
    Picture("phone-dark", PHONE, download),
)


def take(browser: Browser, url: str, picture: Picture) -> Image.Image:
    context = browser.new_context(
        **picture.screen,  # type: ignore[arg-type]
        color_scheme=picture.scheme,  # type: ignore[arg-type]
        reduced_motion="reduce",
        locale="en-GB",
    )
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(url)
    page.wait_for_selector("html[data-ready]")
    page.wait_for_selector(".tile")
    picture.act(page)
    page.wait_for_timeout(500)  # waveforms are drawn after their cards are ready
    data = page.screenshot()
    context.close()
    return Image.open(io.BytesIO(data)).convert("RGB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--only", help="the name of one picture")
    given = parser.parse_args()
    expect.set_options(timeout=PATIENCE)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with server() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for picture in PICTURES:
            if given.only in (None, picture.name):
                path = given.out / f"{picture.name}.png"
                with atomic_write(path) as temporary:
                    # 256 colours are enough for the spectrograms, and a fifth of the bytes.
                    small = take(browser, url, picture).quantize(256)
                    small.save(temporary, format="PNG", optimize=True)
                print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
        browser.close()


if __name__ == "__main__":
    main()
