"""The command line for tests: run as a process, or only asked whether it would take some words."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from diffsound.cli.main import build_app, run, with_verb

# Runs the command line in this process: exit code, stdout, stderr (the fixture `here`).
Here = Callable[..., tuple[int, str, str]]

RUN = [sys.executable, "-m", "diffsound"]


def diffsound(
    *arguments: str, cwd: Path, stdin: str = "", **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [*RUN, *arguments],
        cwd=cwd, input=stdin, text=True, capture_output=True, timeout=300, **options,
    )  # fmt: skip


def typed(*arguments: object) -> int:
    """The exit code of the command line, run in this process."""
    with pytest.raises(SystemExit) as ended:
        run([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def check_parses(arguments: list[str]) -> None:
    """Raise unless verbs, options and their values are ones the command line knows."""
    command = typer.main.get_command(build_app())
    for leaf in _leaves(command):
        leaf.callback = lambda **values: None
    command.main(with_verb(arguments), prog_name="diffsound", standalone_mode=False)


def _leaves(command: Any) -> Iterator[Any]:
    if not hasattr(command, "commands"):
        yield command
        return
    for each in command.commands.values():
        yield from _leaves(each)


def option_names(verb: str) -> set[str]:
    """The long options of a verb, without dashes; of a pair of switches the first."""
    command: Any = typer.main.get_command(build_app())
    options = [option for param in command.commands[verb].params for option in param.opts]
    return {option.removeprefix("--") for option in options if option.startswith("--")}
