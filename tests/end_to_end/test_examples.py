"""The examples run: scripts, the notebook and the game; the Godot script sends what we accept."""

from __future__ import annotations

import io
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import soundfile
from fastapi.testclient import TestClient
from gdtoolkit.linter import DEFAULT_CONFIG, lint_code
from nbclient import NotebookClient

from diffsound.generation.pipeline import TextToSound
from serving_support import HOST, make_app, wait_ready

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(script: str, *arguments: str | Path, **environment: str) -> str:
    """What the script prints; it must succeed."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / script, *arguments],
        env=os.environ | environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the bundled model, from the first cell to a fine-tuned bundle."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    source = EXAMPLES / "first_sounds.ipynb"
    notebook = nbformat.read(source, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    # Less training; the cell that says how long is the reader's to change.
    (cell,) = [cell for cell in notebook.cells if "MINUTES = 0.1" in cell.source]
    cell.source = cell.source.replace("MINUTES = 0.1", "MINUTES = 0.02")
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, resources=resources).execute()
    shown = [
        output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", ())
    ]
    players = [data["text/html"].count("<audio controls") for data in shown if "text/html" in data]
    assert players == [1, 1, 1, 1, 1]
    assert soundfile.info(tmp_path / "edited.flac").duration == 4.0
    assert (tmp_path / "my-model" / "config.json").exists()


def test_the_script_with_the_names_of_diffusers(ranking_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "dog.wav"
    options = ("--steps", "5", "--out", out, "--bundle", ranking_folder)
    said = run("diffusers_like.py", "a dog barks", *options)
    assert said.startswith("Sound('a dog barks', 2 s, seed ")
    assert soundfile.info(out).duration == 2.0


def test_the_fastapi_application(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUNDLE", str(tiny_folder))
    with TestClient(runpy.run_path(str(EXAMPLES / "fastapi_app.py"))["app"]) as client:
        answers = [client.get("/sound", params={"prompt": "rain", "seed": 3}) for _ in range(2)]
        assert answers[0].headers["content-type"] == "audio/ogg"
        assert soundfile.info(io.BytesIO(answers[0].content)).duration == pytest.approx(2, abs=0.1)
        assert answers[0].content == answers[1].content
        assert client.get("/sound", params={"prompt": " "}).status_code == 422
        assert client.get("/sound", params={"prompt": "rain", "seconds": 99}).status_code == 422


def test_the_game_plays(tiny_folder: Path) -> None:
    headless = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}
    said = run("pygame_steps.py", "--frames", "20", "--bundle", str(tiny_folder), **headless)
    assert said.splitlines()[-1] == "20 sounds played in 20 frames"


def test_the_godot_script(pipeline: TextToSound) -> None:
    """It parses and passes Godot's style guide; the server answers what it sends with OGG."""
    code = (EXAMPLES / "godot" / "diffsound_player.gd").read_text(encoding="utf-8")
    assert lint_code(code, DEFAULT_CONFIG) == []
    (path,) = re.findall(r'server \+ "(/[\w/-]+)"', code)
    (body,) = re.findall(r"var request := \{(.*?)\}", code, flags=re.S)
    given = {"prompt": '"a dog"', "duration": "0.5", "seed_number": "3", "loop": "false"}
    written = re.sub(r": (\w+),", lambda match: f": {given[match[1]]},", body).rstrip().rstrip(",")
    with TestClient(make_app(pipeline), base_url=f"http://{HOST}") as client:
        wait_ready(client)
        answer = client.post(path, json=json.loads(f"{{{written}}}"))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "audio/ogg"
    assert answer.content.startswith(b"OggS")
