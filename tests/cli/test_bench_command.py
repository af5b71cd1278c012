"""`diffsound bench`: every stage has a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diffsound.bench import measure
from diffsound.cli.main import build_app
from diffsound.errors import InputError


def test_table_and_json(tiny_folder: Path) -> None:
    options = ["bench", "-b", str(tiny_folder), "--duration", "1", "--repeats", "2"]
    shown = CliRunner().invoke(build_app(["bench", "bundle"]), options)
    assert shown.exit_code == 0, shown.output
    for stage in ("text encoder", "token decoder", "codec decoder", "vocoder", "text to WAV"):
        assert stage in shown.output
    given = CliRunner().invoke(build_app(["bench", "bundle"]), [*options, "--json"])
    times = json.loads(given.output)
    assert times["steps"] == 3
    assert times["duration"] == 1.0
    assert times["total"] == pytest.approx(1.0 / times["faster_than_real_time"])
    parts = [seconds for name, seconds in times["stages"].items() if "load" not in name]
    assert sum(parts) <= times["total"] * 1.5
    assert min(times["stages"].values()) >= 0


def test_no_repeats(tiny_folder: Path) -> None:
    with pytest.raises(InputError, match="repeats"):
        measure(tiny_folder, repeats=0)
