"""The benchmark of the paper's size still runs, here at a size that says nothing of speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_the_full_size_step_runs_at_tiny_size(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    script = FOLDER / "full_size_step.py"
    command = [sys.executable, str(script), "--preset", "tiny", "--rounds", "1", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(out.read_text())) == {"ratios", "seconds"}
