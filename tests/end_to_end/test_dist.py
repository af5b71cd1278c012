"""The package builds: a wheel with the model inside, fit for an index."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import diffsound

ROOT = Path(__file__).parents[2]
MOST_BYTES = 100_000_000  # what an index accepts for one file


def run(*words: str | Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *map(str, words)],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_holds_the_model_and_passes_the_index_checks(tmp_path: Path) -> None:
    run("build", "--wheel", "--no-isolation", "--outdir", tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"diffsound-{diffsound.__version__}-py3-none-any")
    assert wheel.stat().st_size <= MOST_BYTES
    run("twine", "check", "--strict", wheel)

    package = ROOT / "src" / "diffsound"
    wanted = {
        f"diffsound/{path.relative_to(package).as_posix()}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted - set(zipfile.ZipFile(wheel).namelist()) == set()
