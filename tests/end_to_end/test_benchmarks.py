"""The benchmarks that need the paper's sizes still run: here at sizes that say nothing of speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("script", "options", "expected"),
    [
        ("full_size_step.py", ["--rounds", "1"], {"ratios", "seconds"}),
        ("ar_cache.py", ["--batch", "1", "2", "--repeats", "1"], {"1", "2"}),
    ],
)
def test_it_runs(tmp_path: Path, script: str, options: list[str], expected: set[str]) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, str(FOLDER / script), "--preset", "tiny", *options]
    done = subprocess.run([*command, "--json", str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(out.read_text())) == expected
