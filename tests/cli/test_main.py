"""The command line: exit codes, one-line errors, nothing half-written.

What does not hang on being a process of its own runs in this one, for speed.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from typer.testing import CliRunner

from cli_support import RUN, Here, check_parses, diffsound
from diffsound.audio.io import write_audio
from diffsound.cli.main import COMMANDS, build_app, with_verb
from diffsound.generation.pipeline import TextToSound
from diffsound.generation.settings import slug


def test_generate_prints_the_path_it_writes(tmp_path: Path, tiny_folder: Path) -> None:
    result = diffsound(
        "a dog barks",
        "-b",
        str(tiny_folder),
        "--seed",
        "7",
        "--spectrogram",
        "--json",
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    line = json.loads(result.stdout)
    assert line["file"] == "a-dog-barks-7.wav"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a-dog-barks-7.png", "a-dog-barks-7.wav"]
    assert result.stderr == ""


def test_piped_prompt_several_candidates(tmp_path: Path, tiny_folder: Path) -> None:
    result = diffsound(
        "generate", "-b", str(tiny_folder), "-o", "x.flac", "--candidates", "2", "--seed", "1",
        cwd=tmp_path, stdin="church bells\n",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x-1.flac", "x-2.flac"]


def test_edits(here: Here, tiny_folder: Path) -> None:
    bundle = ("-b", str(tiny_folder))
    assert here("rain", "-o", "a.wav", *bundle)[0] == 0
    for verb, *options in (
        ("inpaint", "--start", "0.2", "--end", "0.6"),
        ("extend", "--seconds", "0.5"),
        ("vary", "--strength", "0.3", "--sampler", "confidence"),
    ):
        code, _, errors = here(
            "edit", verb, "a.wav", "a bell", *options, "-o", f"{verb}.wav", *bundle
        )
        assert code == 0, errors
        assert Path(f"{verb}.wav").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("",),
        ("rain", "--duration", "0"),
        ("rain", "--duration", "-1"),
        ("rain", "--duration", "1e9"),
        ("rain", "--duration", "nan"),
        ("rain", "--seed", "-1"),
        ("rain", "--seed", str(2**70)),
        ("rain", "--sampler", "magic"),
        ("rain", "--steps", "0"),
        ("rain", "--candidates", "0"),
        ("rain", "--device", "mps" if torch.cuda.is_available() else "cuda"),
        ("rain", "--device", "gpu"),
        ("rain", "-o", "x.xyz"),
        ("rain", "-o", "no/such/folder/x.wav"),
        ("rain", "-o", "exists.wav"),
        ("rain", "--format", "aiff"),
        ("rain", "-b", "no-such-bundle"),
        ("rain", "--loudness", "nan"),
        ("edit", "extend", "none.wav", "rain", "--seconds", "1"),
        ("edit", "extend", "exists.wav", "rain", "--seconds", "1"),
        ("bundle", "inspect", "no-such-bundle"),
        ("bundle", "import", "new", "--decoder", "exists.wav"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    here: Here, tiny_folder: Path, arguments: tuple[str, ...]
) -> None:
    Path("exists.wav").write_bytes(b"not audio")
    if "-b" not in arguments and arguments[0] != "bundle":
        arguments = (*arguments, "-b", str(tiny_folder))
    code, _, errors = here(*arguments)
    assert code == 2, errors
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert [p.name for p in Path().iterdir()] == ["exists.wav"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("play", "x.wav"), 'did you mean: diffsound "a dog barks" --play (to hear it: '),
        (("models",), "did you mean: diffsound bundle inspect"),
        (("version",), "did you mean: diffsound --version"),
        (("evalute", "metrics"), "did you mean: diffsound evaluate"),
        (("rain", "--steps", "0"), "--steps must be a whole number"),
        (("rain", "--duration", "99"), "--duration must be a number from 0.5 to 30"),
        (("rain", "--candidates", "0"), "--candidates must be a whole number"),
        (("rain", "--steps", "3", "--stride", "2"), "give --steps or --stride, not both"),
        (("rain", "-o", "x.wav", "--format", "mp3"), "-o x.wav contradicts --format mp3"),
        (("rain", "-o", "x.wav", "--output-dir", "d"), "--output-dir does not work with -o"),
        (("rain", "-o", "-", "--json"), "--json does not work with -o -"),
        (("rain", "-o", "-", "-n", "2"), "-o - takes one sound, not 2"),
        (("rain", "-o", "."), ". is a folder; use --output-dir ."),
        (("rain", "-n", "2", "--keep", "3"), "--keep must be at most --candidates, 2, not 3"),
        (("rain", "--variations", "4", "-n", "2"), "--variations must be given without --cand"),
        (("rain", "--variations", "4", "--loop"), "--variations must be given without --loop"),
        (("bundel", "inspect"), "did you mean: diffsound bundle"),
        (
            ("edit", "extend", "x.wav", "rain", "--seconds", "1", "--best-of", "4"),
            "--best-of does not apply to an edit",
        ),
        (
            ("edit", "extend", "x.wav", "rain", "--seconds", "1", "--loop"),
            "--loop does not apply to an edit",
        ),
    ],
)
def test_messages_name_commands_and_options(
    here: Here, tiny_folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    is_prompt = arguments[0] in ("rain", "edit")
    code, _, errors = here(*arguments, *(("-b", str(tiny_folder)) if is_prompt else ()))
    assert code == 2
    assert message in errors
    assert errors.count("\n") == 1
    assert list(Path().iterdir()) == []


def test_a_prompt_needs_no_quotes_and_takes_are_counted_with_n(
    here: Here, tiny_folder: Path
) -> None:
    code, shown, errors = here(
        "a", "dog", "barks", "-n", "2", "-b", str(tiny_folder), "--seed", "7", "--json"
    )
    assert code == 0, errors
    assert [json.loads(line)["prompt"] for line in shown.splitlines()] == ["a dog barks"] * 2
    assert {p.name for p in Path().iterdir()} == {"a-dog-barks-7.wav", "a-dog-barks-8.wav"}


def test_a_sound_goes_to_standard_output_and_nowhere_else(
    tmp_path: Path, tiny_folder: Path
) -> None:
    done = subprocess.run(
        [*RUN, "rain", "-b", str(tiny_folder), "--seed", "7", "-o", "-", "--format", "flac"],
        cwd=tmp_path, capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    assert list(tmp_path.iterdir()) == []
    (sound,) = TextToSound.from_pretrained(tiny_folder)("rain", seed=7)
    assert done.stdout == sound.encode("flac")


def test_info_shows_the_recipe_and_remake_makes_the_same_sound(
    here: Here, tiny_folder: Path
) -> None:
    bundle = ("-b", str(tiny_folder))
    options = ("--duration", "1", "--seed", "7", "--stride", "2", "-o", "a.flac")
    assert here("rain", *options, *bundle)[0] == 0
    code, shown, _ = here("info", "a.flac")
    assert code == 0
    assert shown.startswith("a.flac: 1.00 s, ")
    lines = shown.splitlines()
    assert {"  prompt: rain", "  seed: 7", "  model: tiny", "  stride: 2"} <= set(lines)
    assert lines[-1] == "make it again: diffsound remake a.flac"
    recipe = json.loads(here("info", "a.flac", "--json")[1])
    assert (recipe["prompt"], recipe["duration"]) == ("rain", 1.0)

    assert here("remake", "a.flac", *bundle)[0] == 0
    assert Path("a-remade.flac").read_bytes() == Path("a.flac").read_bytes()
    changes = ("--seed", "8", "--duration", "1.5", "--steps", "3", "-o", "b.wav")
    code, _, errors = here("remake", "a.flac", *changes, *bundle)
    assert code == 0, errors
    changed = json.loads(here("info", "b.wav", "--json")[1])
    assert (changed["seed"], changed["duration"]) == (8, 1.5)
    assert changed["num_inference_steps"] == 3
    assert "stride" not in changed


@pytest.mark.parametrize(
    "recipe",
    [
        {"prompt": "\x1b[2Jrain", "seed": [1], "layers": [3, {"start": None}], "coverage": 3},
        {"prompt": ["rain"], "seed": "7", "layers": 5, "\x1b[31m": {}},
        {"prompt": "rain", "seed": -1, "duration": "long"},
    ],
)
def test_a_hostile_recipe_is_harmless(
    here: Here, tiny_folder: Path, recipe: dict[str, object]
) -> None:
    write_audio("x.wav", np.zeros(22050), 22050, metadata={"diffsound": recipe})
    code, shown, _ = here("info", "x.wav")
    assert code == 0
    assert "\x1b" not in shown
    code, _, errors = here("remake", "x.wav", "-b", str(tiny_folder))
    assert code == 2
    assert errors.count("\n") == 1
    assert [path.name for path in Path().iterdir()] == ["x.wav"]


def test_what_cannot_be_remade_is_refused(here: Here, tiny_folder: Path) -> None:
    bundle = ("-b", str(tiny_folder))
    assert here("rain", "--seed", "7", "-o", "a.wav", *bundle)[0] == 0
    soundfile.write("other.wav", np.zeros(22050), 22050)
    assert "no recipe" in here("info", "other.wav")[1]
    assert here("edit", "vary", "a.wav", "-o", "edit.wav", *bundle)[0] == 0
    files = sorted(Path().iterdir())
    for arguments, message in (
        (("remake", "other.wav", *bundle), "other.wav has no recipe"),
        (("remake", "edit.wav", *bundle), "edit.wav is an edit"),
        (("remake", "a.wav"), "was made with the model 'tiny'; give its folder with --bundle"),
        (("remake", "none.wav"), "cannot read none.wav"),
        (("info", "none.wav"), "cannot read none.wav"),
        (("edit", "vary", "other.wav", *bundle), "give a prompt"),
    ):
        code, _, errors = here(*arguments)
        assert code == 2
        assert message in errors
        assert errors.count("\n") == 1
    assert sorted(Path().iterdir()) == files


def test_an_edit_without_a_prompt_uses_the_prompt_in_the_file(
    here: Here, tiny_folder: Path
) -> None:
    bundle = ("-b", str(tiny_folder))
    assert here("rain on a roof", "-o", "a.mp3", *bundle)[0] == 0
    for verb, *options in (("extend", "--seconds", "0.5"), ("vary", "--strength", "0.3")):
        code, shown, errors = here("edit", verb, "a.mp3", *options, "--json", *bundle)
        assert code == 0, errors
        assert json.loads(shown)["prompt"] == "rain on a roof"


def test_unwritable_target(here: Here, tiny_folder: Path) -> None:
    """A device without room: what a full disk says."""
    code, _, errors = here("rain", "-o", "/proc/x.wav", "-b", str(tiny_folder))
    assert code == 2
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("rain --duratoin 3", "there is no option --duratoin; did you mean --duration?"),
        ("rain --magic", "there is no option --magic (help: diffsound generate -h)"),
        ("rain --seed", "option '--seed' requires an argument (help: diffsound"),
        ("rain -n 1.5", "--candidates must be a whole number (help: "),
        ("rain --guidance lots", "--guidance must be a number (help: "),
        ("rain --duration 3s", "--duration: '3s' is neither a number of seconds nor auto"),
        ("info", "missing argument 'file' (help: diffsound info -h)"),
        ("info a b", "got unexpected extra argument"),
        ("edit extend x.wav", "missing option '--seconds' (help: diffsound edit extend -h)"),
        ("edit inpant x.wav", "no such command 'inpant'. Did you mean 'inpaint'?"),
        ("data prepare x --out d --engine z", "--engine: 'z' is not one of 'processes'"),
        ("serve --port abc", "--port must be a whole number"),
        ("serve --port 99999", "--port must be less than or equal to 65535"),
        ("serve --max-duration 0", "--max-duration must be greater than"),
        ("ui --port -1", "--port must be greater than or equal to 0"),
    ],
)
def test_wrong_words_are_one_line_that_names_the_option(
    here: Here, arguments: str, message: str
) -> None:
    code, _, errors = here(*shlex.split(arguments))
    assert code == 2
    assert errors.startswith(f"error: {message}")
    assert errors.count("\n") == 1
    assert list(Path().iterdir()) == []


def test_a_group_without_its_verb_lists_the_verbs(here: Here) -> None:
    code, _, errors = here("edit")
    assert code == 2
    assert "Regenerate a region" in errors


@pytest.mark.parametrize("arguments", [("",), ("rain", "-n", "0"), ("rain", "--keep", "2")])
def test_a_wrong_request_is_refused_before_the_model_is_loaded(
    here: Here, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextToSound, "from_pretrained", None)
    assert here(*arguments)[0] == 2


def test_bundle_verbs(here: Here, tiny_folder: Path) -> None:
    assert here("bundle", "verify", str(tiny_folder))[1].endswith("good\n")
    shown = json.loads(here("bundle", "inspect", str(tiny_folder), "--json")[1])
    assert shown["name"] == "tiny"
    assert set(shown["parameters"]) == {"codec", "decoder", "vocoder"}


def test_version_and_help(tmp_path: Path) -> None:
    assert diffsound("--version", cwd=tmp_path).stdout.startswith("diffsound ")
    shown = diffsound("--help", cwd=tmp_path).stdout
    listed = re.findall(r"^  ([a-z]+)  ", shown.partition("Commands:")[2], re.MULTILINE)
    assert set(listed) == {
        "generate", "edit", "remake", "info", "batch", "ui", "serve", "data", "train", "finetune",
        "evaluate", "bundle", "bench",
    }  # fmt: skip
    assert "Examples:" in shown


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_has_short_help_with_examples_that_parse(verb: str) -> None:
    shown = CliRunner().invoke(build_app(), [verb, "--help"]).output
    assert len(shown.splitlines()) < 85
    _, found, examples = shown.partition("Example")
    assert found
    lines = re.findall(r"^    (.*?\bdiffsound .+)$", examples, re.MULTILINE)
    assert lines
    for line in lines:
        for command in line.split(" && "):
            words = shlex.split(command[command.index("diffsound ") :])
            check_parses(words[1:])


def test_the_package_and_the_command_line_start_without_torch() -> None:
    code = (
        "import sys, diffsound, diffsound.cli.main as m; m.build_app(); "
        "sys.exit(any(n in sys.modules for n in ('torch', 'numpy', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["a dog"], ["generate", "a dog"]),
        (["generate", "x"], ["generate", "x"]),
        (["data", "prepare"], ["data", "prepare"]),
        (["-o", "x.wav", "a dog"], ["generate", "-o", "x.wav", "a dog"]),
        (["--", "-dog"], ["generate", "--", "-dog"]),
        (["--help"], ["--help"]),
    ],
)
def test_with_verb(given: list[str], expected: list[str]) -> None:
    assert with_verb(given) == expected


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("A dog barks!", "a-dog-barks"),
        ("../../etc/passwd", "etc-passwd"),
        ("雨", "sound"),
        ("Émile’s café", "emiles-cafe"),
        ("x" * 300, "x" * 48),
    ],
)
def test_slug(prompt: str, name: str) -> None:
    assert slug(prompt) == name


@pytest.mark.parametrize("verb", COMMANDS)
def test_the_list_of_verbs_agrees_with_their_help(verb: str) -> None:
    shown = " ".join(CliRunner().invoke(build_app(), [verb, "--help"]).output.split())
    assert COMMANDS[verb].removesuffix(".") in shown
