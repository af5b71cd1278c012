"""How long a person waits at the start: for help, for the first sound, for the page.

    python benchmarks/startup.py [--bundle DIR] [--repeats 5] [--json out.json] [--quick]

Targets: `diffsound --help` within 0.5 s; the first sound (5 s long) of a cold process within 5 s;
the page takes a prompt within 1 s after the server says it is ready (needs Chromium and
Playwright). Each is the best of its runs, shown as a share of its target: what disturbs a run only
ever makes it slower. Ends with exit code 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from server_load import server

TARGETS = {"diffsound --help": 0.5, "first sound, cold": 5.0, "page after ready": 1.0}


def command_seconds(*arguments: str) -> float:
    """From the start of a process to its end."""
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "diffsound", *arguments],
        check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return time.perf_counter() - started


def page_seconds(url: str) -> float:
    """From the address being typed to the page taking a prompt, in a fresh browser profile."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page()
        start = time.perf_counter()
        page.goto(url)
        page.wait_for_selector("#go:enabled")
        took = time.perf_counter() - start
        browser.close()
    return took


def best(work: Callable[[], float], repeats: int) -> float:
    return min(work() for _ in range(repeats))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", help="a bundle's folder; the packaged one if missing")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="one run of each")
    given = parser.parse_args()
    repeats = 1 if given.quick else given.repeats
    bundle = ["--bundle", given.bundle] if given.bundle else []
    with tempfile.TemporaryDirectory() as folder:
        sound = ["rain", *bundle, "--duration", "5", "-o", f"{folder}/x.wav", "--overwrite"]
        times = {
            "diffsound --help": best(lambda: command_seconds("--help"), repeats),
            "first sound, cold": best(lambda: command_seconds(*sound), repeats),
        }
    with server(given.bundle) as url:
        times["page after ready"] = best(lambda: page_seconds(url), repeats)
    for name, seconds in times.items():
        share = seconds / TARGETS[name]
        verdict = "PASS" if share <= 1 else "FAIL"
        print(f"{name:>18}  {seconds:6.2f} s  {share:5.2f} of {TARGETS[name]:g} s  {verdict}")
    if given.json:
        given.json.write_text(json.dumps(times, indent=2))
    return 0 if all(times[name] <= target for name, target in TARGETS.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
