"""`diffsound batch` as a process: exit codes, Ctrl-C, going on."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

from cli_support import RUN
from diffsound.files import sha256


def write(folder: Path, count: int, **settings: object) -> Path:
    path = folder / "prompts.jsonl"
    rows = [{"prompt": f"sound {i}", "seed": i, **settings} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_failures_end_in_exit_1_and_bad_files_in_exit_2(tmp_path: Path, tiny_folder: Path) -> None:
    path = write(tmp_path, 2)
    with path.open("a") as stream:
        stream.write('{"prompt": "too long", "steps": 999}\n')
    command = [*RUN, "batch", str(path), "--out", "out", "-b", str(tiny_folder)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stdout == "out: 2 sounds made\n"
    assert done.stderr.startswith("failed: line 3: steps must be from 1 to")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "failures.jsonl", "manifest.jsonl", "sound-0-0.wav", "sound-1-1.wav",
    ]  # fmt: skip

    path.write_text('{"prompt": "rain", "colour": "blue"}\n')
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "'colour'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_empty_prompt_in_a_csv_is_skipped_and_reported(
    tmp_path: Path, tiny_folder: Path
) -> None:
    (tmp_path / "p.csv").write_text("prompt,seed\nrain,1\n,2\n")
    command = [*RUN, "batch", "p.csv", "--out", "out", "-b", str(tiny_folder)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stdout == "out: 1 sound made\n"
    assert done.stderr.startswith("failed: line 3: ")
    assert done.stderr.count("\n") == 1
    assert {p.name for p in (tmp_path / "out").glob("*.wav")} == {"rain-1.wav"}


def test_ctrl_c_leaves_whole_files_and_the_next_run_resumes(
    tmp_path: Path, tiny_folder: Path
) -> None:
    count = 400
    path = write(tmp_path, count, duration=1, steps=10)
    out = tmp_path / "out"
    command = [*RUN, "batch", str(path), "--out", str(out), "-b", str(tiny_folder), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    manifest = out / "manifest.jsonl"
    deadline = time.monotonic() + 100
    while not (manifest.exists() and manifest.read_text().count("\n") >= 3):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "run it again to resume" in errors
    entries = [json.loads(line) for line in manifest.read_text().splitlines()]
    assert 3 <= len(entries) < count
    for entry in entries:
        assert sha256(out / entry["file"]) == entry["sha256"]
    # No temporary file is left.
    assert not [p.name for p in out.iterdir() if p.name.startswith(".")]

    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join(rows[: len(entries) + 2]))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["failures"] == []
    assert report["made"] + report["kept"] == len(entries) + 2
    assert report["kept"] > 0
