"""The documentation works as written: its commands and its Python run, and the site builds."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

import build_site as site
import diffsound
import docs_runner
from cli_support import RUN, check_parses
from diffsound.generation.pipeline import TextToSound
from diffsound.generation.settings import SETTINGS
from diffsound.generation.sound import Sound
from docs_runner import blocks, diffsound_lines

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
RECORDINGS = [
    "rusty gate creaks open", "a dog barks", "rain on a tin roof", "a church bell rings",
    "glass breaks", "footsteps on gravel", "a car horn", "a bird chirps",
]  # fmt: skip
# Run by a test of its own, with a tiny model for seconds instead of half an hour.
ELSEWHERE = {"docs/own-sounds.md": "tests/training/test_own_sounds_tutorial.py"}
EXECUTED = [
    page
    for page in PAGES
    if page not in ELSEWHERE and any(b.language in docs_runner.RUN for b in blocks(ROOT / page))
]
DOCUMENTED = [name for name in diffsound.__all__ if not name.startswith("_")]


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A reader's folder: the repository's configs, recordings, `diffsound` on the path."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "my_sounds").mkdir()
    for number, name in enumerate(RECORDINGS):
        time = np.arange(12000) / 22050
        wave = 0.2 * np.sin(2 * np.pi * (200 + 90 * number) * time) * np.exp(-5 * time)
        soundfile.write(tmp_path / "my_sounds" / f"{name}.wav", wave, 22050)
    (tmp_path / "bin").mkdir()
    for name, program in {"diffsound": RUN, "python": [sys.executable]}.items():
        command = tmp_path / "bin" / name
        command.write_text(f'#!/bin/sh\nexec {shlex.join(program)} "$@"\n')
        command.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("page", EXECUTED)
def test_the_page_runs(page: str, desk: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    if "\ncurl " in text and shutil.which("curl") is None:
        pytest.skip("this page's commands use curl")
    done = subprocess.run(
        [sys.executable, docs_runner.__file__, str(ROOT / page)],
        cwd=desk,
        env=os.environ | {"PATH": f"{desk / 'bin'}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_commands_that_are_not_run_are_ones_there_are(page: str) -> None:
    """What needs a cluster, hours or other people's files is at least spelled right."""
    for block in blocks(ROOT / page):
        for line in diffsound_lines(block):
            try:
                check_parses(shlex.split(line, comments=True)[1:])
            except Exception as error:
                pytest.fail(f"{page}, line {block.line}: {line}: {error}")


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"\b(?:benchmarks|configs|docs|src|tests|tools)/[\w/-]+\.\w+", text)
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert all((ROOT / name).exists() for name in ELSEWHERE.values())


def test_every_page_is_reached_from_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [page for page in PAGES[1:] if f" {Path(page).name}" not in menu] == []


def test_the_reference_names_the_whole_public_api() -> None:
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    methods = [TextToSound.__call__, TextToSound.inpaint, TextToSound.extend, TextToSound.vary]
    wanted = {*diffsound.__all__, *TextToSound.__init__.__kwdefaults__, *SETTINGS}
    wanted |= {name for method in methods for name in inspect.signature(method).parameters}
    wanted |= {name for name in vars(Sound) if not name.startswith("_")}
    hidden = {"self", "options"}
    assert [name for name in sorted(wanted - hidden) if not re.search(rf"\b{name}\b", text)] == []


def test_the_site_builds(tmp_path: Path) -> None:
    site.build(tmp_path)
    pages = {path: path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html")}
    assert not any("fonts.googleapis" in text for text in pages.values())
    # Zensical checks links and anchors, but neither pictures, sounds nor the menu.
    menu = re.findall(r": ([\w-]+)\.md$", (ROOT / "mkdocs.yml").read_text(), flags=re.M)
    menu.remove("index")
    assert [name for name in menu if not (tmp_path / name / "index.html").exists()] == []
    shown = [
        page.parent / source
        for page, text in pages.items()
        for source in re.findall(r'<(?:audio|img) [^>]*src="([^":]+)"', text)
    ]
    assert sum(file.suffix == ".ogg" for file in shown) >= 6 + 2 * 24
    assert [file for file in shown if not file.exists()] == []
    reference = (tmp_path / "reference" / "index.html").read_text(encoding="utf-8")
    assert [name for name in DOCUMENTED if f'{name}"' not in reference] == []


def test_a_broken_link_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = tmp_path / "README.md"
    card.write_text("# Card\n\n[nowhere](missing.md)\n")
    monkeypatch.setattr(site, "MODEL_CARD", card)
    with pytest.raises(subprocess.CalledProcessError):
        site.build(tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_the_listening_page_has_a_column_for_each_version(tmp_path: Path) -> None:
    entry = '## {0}. {1}\n\n![picture](x.png)\n\n<audio controls src="gallery/{0}.ogg"></audio>\n'
    now, old = tmp_path / "gallery.md", tmp_path / "versions" / "0.1" / "gallery.md"
    old.parent.mkdir(parents=True)
    now.write_text(entry.format(1, "a dog barks") + entry.format(2, "rain"))
    old.write_text(entry.format(1, "rain"))
    table = site.listening_page(site.galleries(tmp_path)).split("\n\n")[-1].splitlines()
    assert table[0] == "| prompt | [this version](gallery.md) | [0.1](versions/0.1/gallery.md) |"
    dog, rain = ([cell.strip() for cell in row.split("|")[1:-1]] for row in table[2:])
    assert dog[0] == "a dog barks"
    assert 'src="gallery/1.ogg"' in dog[1]
    assert dog[2] == ""
    assert 'src="gallery/2.ogg"' in rain[1]
    assert 'src="versions/0.1/gallery/1.ogg"' in rain[2]


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_public_name_has_a_docstring(name: str) -> None:
    assert getattr(diffsound, name).__doc__  # its own: __doc__ is not inherited
