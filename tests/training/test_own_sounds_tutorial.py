"""The tutorial docs/own-sounds.md works as written, on a tiny bundle and for seconds."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import soundfile

from cli_support import RUN
from diffsound.model.bundle import Bundle

PAGE = Path(__file__).parents[2] / "docs" / "own-sounds.md"


def test_the_own_sounds_tutorial_works_as_written(tiny_folder: Path, tmp_path: Path) -> None:
    sounds = tmp_path / "my_sounds"
    sounds.mkdir()
    for number in range(9):
        time = np.arange(8000) / 22050
        wave = 0.2 * np.sin(2 * np.pi * (200 + 90 * number) * time) * np.exp(-5 * time)
        soundfile.write(sounds / f"rusty gate creaks open {number:02d}.wav", wave, 22050)
    commands = "".join(re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S))
    assert commands.count("diffsound finetune --data my_sounds") == 1
    # The tiny bundle instead of the installed one, seconds instead of half an hour.
    commands = commands.replace(
        "finetune --data", f"finetune {shlex.quote(str(tiny_folder))} --data"
    )
    commands = commands.replace("--minutes 30", "--minutes 0.02")
    script = f'set -e\ndiffsound() {{ {shlex.join(RUN)} "$@"; }}\n{commands}'
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "9 sounds, 1 of them held out" in done.stderr
    assert Bundle.from_pretrained(tmp_path / "my-model").config.name == "my-model"
    assert len(list((tmp_path / "takes").glob("*.wav"))) == 2
