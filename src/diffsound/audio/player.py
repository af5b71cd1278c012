"""Play a sound file with a program of the operating system."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from diffsound.errors import AudioError, InputError


class _Player(NamedTuple):
    """options: before the file. formats: those it plays. platform: None if it runs on all."""

    options: tuple[str, ...]
    formats: frozenset[str]
    platform: str | None


_PLAYERS = {
    "afplay": _Player((), frozenset({"wav", "flac", "mp3"}), "darwin"),
    "pw-play": _Player((), frozenset({"wav", "flac", "ogg"}), "linux"),
    "paplay": _Player((), frozenset({"wav", "flac", "ogg"}), "linux"),
    "aplay": _Player(("-q",), frozenset({"wav"}), "linux"),
    "ffplay": _Player(
        ("-nodisp", "-autoexit", "-loglevel", "quiet"),
        frozenset({"wav", "flac", "ogg", "mp3"}),
        None,
    ),
}


def find_player(file_format: str) -> list[str]:
    """The command that plays files of this format; InputError if none is installed."""
    players = {
        name: player
        for name, player in _PLAYERS.items()
        if file_format.lower() in player.formats and player.platform in (None, sys.platform)
    }
    for name, player in players.items():
        if path := shutil.which(name):
            return [path, *player.options]
    raise InputError(
        f"no player for .{file_format} files was found; install {' or '.join(players)}"
    )


def play(player: list[str], path: Path) -> None:
    """Play a file to its end."""
    result = subprocess.run([*player, str(path.absolute())], capture_output=True, text=True)
    if result.returncode:
        said = (result.stderr or result.stdout).strip().splitlines()
        reason = said[-1] if said else f"exit code {result.returncode}"
        raise AudioError(f"{Path(player[0]).name} could not play {path}: {reason}")
