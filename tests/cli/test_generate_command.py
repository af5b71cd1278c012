"""`diffsound generate` and `edit`: files, players, completion, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli_support import RUN
from diffsound.audio.player import find_player, play
from diffsound.cli.main import with_verb
from diffsound.cli.output import Target, choose_seeds
from diffsound.errors import AudioError, InputError
from diffsound.generation.pipeline import TextToSound


def player(folder: Path, name: str, script: str) -> None:
    """A player on the PATH: a real program, if a small one."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_play_uses_an_installed_player(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(InputError, match=r"no player for .wav files .*install afplay or ffplay$"):
        find_player("wav")
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(InputError, match=r"no player for .wav files .*install pw-play or paplay"):
        find_player("wav")
    player(tmp_path, "aplay", 'echo "$@" > "$(/usr/bin/dirname "$0")/played"')
    assert find_player("wav")[0].endswith("aplay")
    with pytest.raises(InputError, match=r"no player for .mp3 files"):
        find_player("mp3")
    play(find_player("wav"), Path("x.wav"))
    assert (tmp_path / "played").read_text().split() == ["-q", str(Path("x.wav").absolute())]
    player(tmp_path, "ffplay", "echo no device >&2; exit 3")
    with pytest.raises(AudioError, match=r"ffplay could not play x.mp3: no device"):
        play(find_player("mp3"), Path("x.mp3"))


def test_generate_plays_and_names_and_never_overwrites(tmp_path: Path, tiny_folder: Path) -> None:
    bin_folder, work = tmp_path / "bin", tmp_path / "work"
    bin_folder.mkdir()
    work.mkdir()
    player(bin_folder, "aplay", f'test -s "$2" && echo "$2" >> {tmp_path}/played')
    environment = os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}"}

    def diffsound(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*RUN, "a dog", "-b", str(tiny_folder), *arguments],
            cwd=work, env=environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    done = diffsound("--seed", "3", "--candidates", "2", "--play")
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in work.iterdir()) == ["a-dog-3.wav", "a-dog-4.wav"]
    played = (tmp_path / "played").read_text().splitlines()
    assert [Path(path).name for path in played] == ["a-dog-3.wav", "a-dog-4.wav"]
    # One of the two candidates' names is taken, as is the name of a picture.
    (work / "a-dog-5.png").write_bytes(b"mine")
    for seed, options in (("2", ("--candidates", "2")), ("5", ("--spectrogram",))):
        done = diffsound("--seed", seed, *options)
        assert done.returncode == 2
        assert "exists" in done.stderr
    assert (work / "a-dog-5.png").read_bytes() == b"mine"
    assert len(list(work.iterdir())) == 3


def test_existing_files_are_refused_before_generation(tmp_path: Path) -> None:
    target = Target(tmp_path / "x.wav")
    assert [p.name for p in target.paths("rain", [1, 2, 3], 2)] == ["x-1.wav", "x-2.wav"]
    (tmp_path / "x-2.wav").touch()
    target.check_free("rain", [1], 1)
    with pytest.raises(AudioError, match=r"x-2.wav exists"):
        target.check_free("rain", [1, 2], 2)
    Target(tmp_path / "x.wav", overwrite=True).check_free("rain", [1, 2], 2)
    assert choose_seeds(7, 3) == [7, 8, 9]
    assert 0 <= choose_seeds(None, 1)[0] < 2**32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--candidates", "2", "--keep", "3"), "--keep must be at most --candidates, 2"),
        (("--candidates", "2", "--keep", "0"), "--keep must be a whole number from 1 to 100"),
        (("--candidates", "2", "--keep", "1"), "no captioner"),
        (("--captioner", "run"), "--captioner works only with --keep"),
        (("--candidates", "2", "--keep", "1", "--captioner", "run"), "run"),
    ],
)
def test_keep_needs_candidates_and_a_ranker(
    tmp_path: Path, tiny_folder: Path, options: tuple[str, ...], message: str
) -> None:
    done = subprocess.run(
        [*RUN, "rain", "-b", str(tiny_folder), *options],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_keep_writes_the_best_first(
    tmp_path: Path, tiny_folder: Path, ranking_folder: Path, captioner_run: Path
) -> None:
    """With the bundle's captioner, and with one that is named."""
    best = TextToSound.from_pretrained(ranking_folder)(
        "a loud dog", num_candidates=4, keep=2, seed=3
    )
    for bundle, options in (
        (ranking_folder, ()),
        (tiny_folder, ("--captioner", str(captioner_run))),
    ):
        command = [*RUN, "a loud dog", "-b", str(bundle), "--candidates", "4", "--keep", "2"]
        command += ["--seed", "3", "--json", "-o", f"{bundle.name}.wav", *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        told = [json.loads(line) for line in done.stdout.splitlines()]
        assert [line["seed"] for line in told] == [sound.seed for sound in best]
        assert [line["file"] for line in told] == [f"{bundle.name}-1.wav", f"{bundle.name}-2.wav"]
        assert [line["score"] for line in told] == pytest.approx(
            [sound.score for sound in best], abs=1e-3
        )
    assert len(list(tmp_path.iterdir())) == 4


def test_ctrl_c_leaves_no_file(tmp_path: Path, tiny_folder: Path) -> None:
    command = [*RUN, "rain", "-b", str(tiny_folder), "--duration", "30", "--steps", "10"]
    command += ["--candidates", "100", "--output-dir", str(tmp_path / "out")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    # The weights are loaded last before the work begins: it is then in the middle of it.
    maps = Path(f"/proc/{process.pid}/maps")
    deadline = time.monotonic() + 100
    while maps.exists() and "libtorch_cpu" not in maps.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def test_completion(tmp_path: Path) -> None:
    """What a shell asks for when Tab is pressed, and the line that turns it on."""

    def complete(words: str) -> list[str]:
        environment = os.environ | {
            "_DIFFSOUND_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        }
        done = subprocess.run(
            RUN, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    assert sorted(complete("diffsound b")) == ["batch", "bench", "bundle"]
    assert "--negative" in complete("diffsound generate --n")
    for options in (["--show-completion", "bash"], ["--install-completion"]):
        assert with_verb(options) == options


def test_json_lines_hold_what_makes_the_sound_again(tmp_path: Path, tiny_folder: Path) -> None:
    command = [*RUN, "rain", "-b", str(tiny_folder), "--json", "--candidates", "2", "--seed", "5"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["seed"], second["seed"]) == (5, 6)
    assert first["prompt"] == "rain"
    assert {"guidance_scale", "sampler", "duration", "file", "seconds"} <= set(first)


def test_scenes_and_their_stems(tmp_path: Path, tiny_folder: Path) -> None:
    def diffsound(*arguments: str) -> subprocess.CompletedProcess[str]:
        text = "rain, then a dog barks in the distance"
        return subprocess.run(
            [*RUN, text, "-b", str(tiny_folder), "-o", "x.wav", "--duration", "2", *arguments],
            cwd=tmp_path, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    done = diffsound("--layered", "--stems")
    assert done.returncode == 0, done.stderr
    assert "0.0 to 1.3 s: rain\n" in done.stdout
    assert "1.0 to 2.0 s: a dog barks, far away\n" in done.stdout
    names = ["x-layer1.wav", "x-layer2.wav", "x.wav"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    # A stem's name is as taken as any other, and that is said before work begins.
    (tmp_path / "x.wav").unlink()
    done = diffsound("--layered", "--stems")
    assert done.returncode == 2
    assert "x-layer1.wav exists" in done.stderr
    done = diffsound("--one-piece", "--stems", "--overwrite", "--json")
    assert done.returncode == 0, done.stderr
    assert "layers" not in json.loads(done.stdout)
    assert done.stderr == "note: x.wav is one sound; --stems found no layers to write\n"
