"""Every option of `generate` does what its help says; in one process, for speed."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from cli_support import RUN, Here, check_parses
from diffsound.audio.io import read_audio

Generate = Callable[..., dict[str, Any]]


@pytest.fixture
def generate(here: Here, tiny_folder: Path) -> Generate:
    """`diffsound "rain" --json …`; gives the line it prints."""

    def command(*options: str) -> dict[str, Any]:
        code, told, errors = here("rain", "-b", str(tiny_folder), "--json", *options)
        assert code == 0, errors
        return json.loads(told)

    return command


@pytest.mark.parametrize(
    ("ending", "kind"), [("wav", "WAV"), ("flac", "FLAC"), ("ogg", "OGG"), ("mp3", "MP3")]
)
def test_the_format_follows_the_ending(generate: Generate, ending: str, kind: str) -> None:
    generate("-o", f"x.{ending.upper()}")
    generate("--format", ending, "--seed", "1")
    assert soundfile.info(f"x.{ending.upper()}").format == kind
    assert soundfile.info(f"rain-1.{ending}").format == kind


def test_the_same_seed_makes_the_same_file(generate: Generate) -> None:
    for name, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        generate("-o", f"{name}.wav", "--seed", seed)
    first, again, other = (Path(f"{name}.wav").read_bytes() for name in "abc")
    assert first == again
    assert first != other


def test_without_a_seed_every_call_differs(generate: Generate) -> None:
    assert generate()["file"] != generate()["file"]


@pytest.mark.parametrize("seconds", ["0.5", "1.7"])
def test_duration(generate: Generate, seconds: str) -> None:
    assert generate("--duration", seconds)["seconds"] == float(seconds)
    assert generate("-d", seconds, "-o", "x.wav")["seconds"] == float(seconds)
    assert len(read_audio("x.wav")) == round(22050 * float(seconds))


@pytest.mark.parametrize(
    ("option", "value", "name", "expected"),
    [
        ("--negative", "wind", "negative_prompt", "wind"),
        ("--steps", "2", "num_inference_steps", 2),
        ("--stride", "3", "stride", 3),
        ("--guidance", "4.5", "guidance_scale", 4.5),
        ("--sampler", "confidence", "sampler", "confidence"),
        ("--temperature", "0.5", "temperature", 0.5),
        ("--top-k", "3", "top_k", 3),
        ("--truncation", "0.6", "truncation", 0.6),
    ],
)
def test_sampling_settings_reach_the_sound(
    generate: Generate, option: str, value: str, name: str, expected: object
) -> None:
    plain = generate("--seed", "3", "-o", "plain.wav", "--guidance", "2", "--steps", "3")
    changed = generate("--seed", "3", "-o", "changed.wav", option, value)
    assert plain.get(name) != expected
    assert changed[name] == expected
    assert Path("plain.wav").read_bytes() != Path("changed.wav").read_bytes()


def test_loudness(generate: Generate) -> None:
    for target in ("-20", "-30"):
        generate("--seed", "1", "-o", f"x{target}.wav", "--loudness", target)
    loud, quiet = (np.sqrt(np.mean(read_audio(f"x{t}.wav") ** 2)) for t in ("-20", "-30"))
    assert 20 * np.log10(loud / quiet) == pytest.approx(10, abs=0.2)


def test_spectrogram(generate: Generate) -> None:
    line = generate("-o", "x.wav", "--spectrogram")
    assert line["spectrogram"] == "x.png"
    with Image.open("x.png") as picture:
        assert picture.size[0] > 20


def test_files_are_replaced_only_with_overwrite(
    generate: Generate, here: Here, tiny_folder: Path
) -> None:
    generate("-o", "x.wav", "--seed", "1")
    before = Path("x.wav").read_bytes()
    for arguments in (
        ["rain", "-o", "x.wav"],
        ["edit", "vary", "x.wav", "rain", "-o", "x.wav"],
    ):
        assert here(*arguments, "-b", str(tiny_folder))[0] == 2
        assert Path("x.wav").read_bytes() == before
    generate("-o", "x.wav", "--seed", "2", "--overwrite")
    assert Path("x.wav").read_bytes() != before


def test_quiet_prints_nothing(here: Here, tiny_folder: Path) -> None:
    assert here("rain", "-b", str(tiny_folder), "-o", "x.wav", "--quiet") == (0, "", "")
    assert Path("x.wav").exists()


def test_the_progress_bar_shows_only_on_a_terminal(tmp_path: Path, tiny_folder: Path) -> None:
    """On a terminal a bar is drawn on stderr and wiped away; stdout has the result alone."""
    ours, theirs = pty.openpty()
    command = [*RUN, "rain", "-b", str(tiny_folder), "-o", "x.wav", "--steps", "10"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs
    )
    os.close(theirs)
    drawn = b""
    while select.select([ours], [], [], 120)[0]:
        try:
            drawn += os.read(ours, 65536)
        except OSError:  # the other end is closed: the process has ended
            break
    os.close(ours)
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 0, drawn
    assert b"rain" in drawn
    assert drawn.rstrip().endswith(b"\x1b[2K")  # the line is cleared at the end
    assert told.decode().startswith("x.wav  (1.00 s, seed ")
    done = subprocess.run(
        [*command, "-f"], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, timeout=120
    )
    assert done.returncode == 0
    assert done.stderr == b""


def test_a_closed_pipe_is_not_an_error(tmp_path: Path, tiny_folder: Path) -> None:
    """As in `diffsound … | head -1`: every sound is written all the same."""
    command = [*RUN, "rain", "-b", str(tiny_folder), "--candidates", "3"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(120) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert len(list(tmp_path.glob("rain-*.wav"))) == 3


@pytest.mark.parametrize("words", ["rain --volume 3", "edit inpaint a.wav rain", "data sort x"])
def test_the_checker_of_documented_commands_can_fail(words: str) -> None:
    with pytest.raises(Exception, match=r"No such|Missing"):
        check_parses(words.split())
