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

import pytest
from typer.testing import CliRunner

from cli_support import Here, check_parses, diffsound
from diffsound.cli.main import COMMANDS, build_app, with_verb
from diffsound.names import slug


def test_generate_writes_where_it_says(tmp_path: Path, tiny_folder: Path) -> None:
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


def test_unwritable_target(here: Here, tiny_folder: Path) -> None:
    """A device without room: what a full disk says."""
    code, _, errors = here("rain", "-o", "/proc/x.wav", "-b", str(tiny_folder))
    assert code == 2
    assert errors.count("\n") == 1


def test_unknown_option_is_exit_2(here: Here) -> None:
    code, _, errors = here("rain", "--magic")
    assert code == 2
    assert "--magic" in errors


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
        "generate", "edit", "batch", "ui", "serve", "data", "train", "finetune", "evaluate",
        "bundle", "bench",
    }  # fmt: skip
    assert "Examples:" in shown


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_has_short_help_with_examples_that_parse(verb: str) -> None:
    shown = CliRunner().invoke(build_app(), [verb, "--help"]).output
    assert len(shown.splitlines()) < 70
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
