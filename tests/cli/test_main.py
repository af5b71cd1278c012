"""The command line, run as a process: exit codes, one-line errors, nothing half-written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from diffsound.cli.main import with_verb
from diffsound.names import slug


def diffsound(*arguments: str, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    code = "from diffsound.cli.main import run; run()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        input=stdin,
        text=True,
        capture_output=True,
        timeout=120,
    )


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


def test_edits(tmp_path: Path, tiny_folder: Path) -> None:
    bundle = ("-b", str(tiny_folder))
    assert diffsound("rain", "-o", "a.wav", *bundle, cwd=tmp_path).returncode == 0
    for verb, *options in (
        ("inpaint", "--start", "0.2", "--end", "0.6"),
        ("extend", "--seconds", "0.5"),
        ("vary", "--strength", "0.3"),
    ):
        result = diffsound(
            "edit", verb, "a.wav", "a bell", *options, "-o", f"{verb}.wav", *bundle, cwd=tmp_path
        )
        assert result.returncode == 0, result.stderr
        assert (tmp_path / f"{verb}.wav").exists()


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
    tmp_path: Path, tiny_folder: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "exists.wav").write_bytes(b"not audio")
    if "-b" not in arguments and arguments[0] != "bundle":
        arguments = (*arguments, "-b", str(tiny_folder))
    result = diffsound(*arguments, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["exists.wav"]


def test_unwritable_target(tmp_path: Path, tiny_folder: Path) -> None:
    """A device without room: what a full disk says."""
    result = diffsound("rain", "-o", "/proc/x.wav", "-b", str(tiny_folder), cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1


def test_unknown_option_is_exit_2(tmp_path: Path) -> None:
    result = diffsound("rain", "--magic", cwd=tmp_path)
    assert result.returncode == 2
    assert "--magic" in result.stderr


def test_bundle_verbs(tmp_path: Path, tiny_folder: Path) -> None:
    assert diffsound("bundle", "verify", str(tiny_folder), cwd=tmp_path).stdout.endswith("good\n")
    shown = json.loads(
        diffsound("bundle", "inspect", str(tiny_folder), "--json", cwd=tmp_path).stdout
    )
    assert shown["name"] == "tiny"
    assert set(shown["parameters"]) == {"codec", "decoder", "vocoder"}


def test_version_and_help(tmp_path: Path) -> None:
    assert diffsound("--version", cwd=tmp_path).stdout.startswith("diffsound ")
    shown = diffsound("--help", cwd=tmp_path).stdout
    assert "generate" in shown
    assert "edit" in shown


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
