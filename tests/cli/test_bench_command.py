"""`diffsound bench`: every stage has a time."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from diffsound.cli.main import build_app
from diffsound.errors import InputError
from diffsound.generation.bench import measure, watched


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
    assert sum(parts) == pytest.approx(times["total"], rel=0.5)
    assert times["best_of"] == 1
    assert min(times["stages"].values()) >= 0


def test_a_stage_s_time_excludes_waiting_for_other_stages() -> None:
    class Slow:
        bundle = SimpleNamespace(judges={})
        decoder: Slow

        def encode_text(self) -> None: ...

        def sketch(self) -> None: ...

        def vocode(self) -> None: ...

        def decode(self) -> None:
            time.sleep(0.2)

        def generate(self) -> None:
            time.sleep(0.02)
            self.decode()

    slow = Slow()
    slow.decoder = slow
    with watched(slow) as spent:  # type: ignore[arg-type]
        slow.decoder.generate()
    assert 0.02 <= spent["token decoder"] < 0.2 <= spent["codec decoder"]
    assert spent["vocoder"] == 0.0
    assert vars(slow) == {"decoder": slow}  # nothing is left of it


def test_bench_needs_at_least_one_repeat(tiny_folder: Path) -> None:
    with pytest.raises(InputError, match="repeats"):
        measure(tiny_folder, repeats=0)
