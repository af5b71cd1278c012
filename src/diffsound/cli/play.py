"""Playing a file with whatever player the machine has."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from diffsound.errors import AudioError, InputError

# Player -> its options, and the formats it takes.
_PLAYERS: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {
    "afplay": ((), frozenset({"wav", "flac", "mp3"})),
    "pw-play": ((), frozenset({"wav", "flac", "ogg"})),
    "paplay": ((), frozenset({"wav", "flac", "ogg"})),
    "aplay": (("-q",), frozenset({"wav"})),
    "ffplay": (
        ("-nodisp", "-autoexit", "-loglevel", "quiet"),
        frozenset({"wav", "flac", "ogg", "mp3"}),
    ),
}


def find_player(file_format: str) -> list[str]:
    """The command that plays such files; refused when there is none."""
    for name, (options, formats) in _PLAYERS.items():
        path = shutil.which(name) if file_format.lower() in formats else None
        if path:
            return [path, *options]
    players = [name for name, (_, formats) in _PLAYERS.items() if file_format.lower() in formats]
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
