"""The documentation works as written: its commands and its Python run, and the site builds."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "docs/index.md",
    "docs/editing.md",
    "docs/python.md",
    "docs/batch.md",
    "docs/export.md",
]


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.M | re.S)


@pytest.mark.parametrize("page", PAGES)
def test_python(page: str, tmp_path: Path) -> None:
    code = "\n".join(blocks(page, "python"))
    if code:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_commands(page: str, tmp_path: Path) -> None:
    run = shlex.join([sys.executable, "-c", "from diffsound.cli.main import run; run()"])
    script = "\n".join(["set -e", f'diffsound() {{ {run} "$@"; }}', *blocks(page, "bash")])
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_there_is_something_to_run() -> None:
    assert all(blocks(page, "bash") or blocks(page, "python") for page in PAGES)


def test_the_site_builds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").exists()
    pages = "".join(path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html"))
    assert "fonts.googleapis" not in pages
