"""Where sounds go on disk, and what is said about them."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from diffsound.errors import AudioError, InputError
from diffsound.names import FORMATS, layer_paths, slug

if TYPE_CHECKING:
    from diffsound.sound import Sound

_SHORT_SEEDS = 2**32


@dataclass(frozen=True)
class Target:
    """The files of one command.

    output: the file asked for, numbered when there are several sounds; without it files are named
    from prompt and seed, in `folder`.
    """

    output: Path | None
    folder: Path = Path()
    file_format: str = "wav"
    spectrogram: bool = False
    overwrite: bool = False
    stems: bool = False

    @property
    def ending(self) -> str:
        """The format of the files."""
        return self.file_format if self.output is None else self.output.suffix.lower().lstrip(".")

    def check(self) -> None:
        """Refuse a target that cannot be written, before any work is done."""
        if self.output is None:
            if self.file_format not in FORMATS:
                raise InputError(
                    f"unknown format '{self.file_format}'; there are: {', '.join(FORMATS)}"
                )
            if self.folder.exists() and not self.folder.is_dir():
                raise AudioError(f"{self.folder} is a file, not a folder")
            return
        if self.ending not in FORMATS:
            raise InputError(
                f"cannot tell the format of '{self.output.name}'; end it in .{', .'.join(FORMATS)}"
            )
        if not self.output.parent.is_dir():
            raise AudioError(f"the folder {self.output.parent} does not exist")

    def paths(self, prompt: str, seeds: Sequence[int], count: int) -> list[Path]:
        """Every path that may be written: `count` sounds out of those with these seeds."""
        if self.output is None:
            return [self._named(prompt, seed) for seed in seeds]
        return [self._numbered(place, count) for place in range(count)]

    def path(self, sound: Sound, place: int, count: int) -> Path:
        """Where sound number `place` of `count` goes."""
        if self.output is None:
            return self._named(sound.prompt, sound.seed)
        return self._numbered(place, count)

    def check_free(self, prompt: str, seeds: Sequence[int], count: int) -> None:
        """Refuse to replace a file, before any work is done."""
        for path in [] if self.overwrite else self.paths(prompt, seeds, count):
            for wanted in self._beside(path):
                if wanted.exists():
                    raise AudioError(
                        f"{wanted} exists; choose another name or seed, or add --overwrite"
                    )

    def _beside(self, path: Path) -> list[Path]:
        """The files that a sound at `path` may come with, and itself."""
        from diffsound.text.scene import MOST_VOICES

        pictures = [path.with_suffix(".png")] if self.spectrogram else []
        stems = layer_paths(path, MOST_VOICES) if self.stems else []
        return [path, *pictures, *stems]

    def _named(self, prompt: str, seed: int) -> Path:
        return self.folder / f"{slug(prompt)}-{seed}.{self.file_format}"

    def _numbered(self, place: int, count: int) -> Path:
        assert self.output is not None
        if count == 1:
            return self.output
        return self.output.with_name(f"{self.output.stem}-{place + 1}{self.output.suffix}")


def choose_seeds(seed: int | None, candidates: int) -> list[int]:
    """The candidates' seeds; drawn here if none is given, so that file names are known at once."""
    first = secrets.randbelow(_SHORT_SEEDS) if seed is None else seed
    return [first + place for place in range(max(1, candidates))]


def write_sounds(
    sounds: Sequence[Sound],
    target: Target,
    *,
    loudness: float | None = None,
    as_json: bool = False,
    quiet: bool = False,
) -> Iterator[Path]:
    """Save every sound and say where it is; gives the paths one by one."""
    for place, sound in enumerate(sounds):
        path = target.path(sound, place, len(sounds))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AudioError(f"cannot make the folder {path.parent}: {error.strerror}") from error
        sound.save(path, loudness=loudness, overwrite=target.overwrite)
        picture = sound.save_spectrogram(path.with_suffix(".png")) if target.spectrogram else None
        if target.stems:
            sound.save_layers(path, overwrite=target.overwrite)
        if as_json:
            line = sound.metadata | {
                "file": str(path),
                "seconds": round(sound.duration, 3),
                "sample_rate": sound.sample_rate,
            }
            if sound.score is not None:
                line["score"] = round(sound.score, 4)
            if picture:
                line["spectrogram"] = str(picture)
            _tell(json.dumps(line, ensure_ascii=False))
        elif not quiet:
            also = f" and {picture}" if picture else ""
            fit = "" if sound.score is None else f", fits {sound.score:.2f}"
            _tell(f"{path}{also}  ({sound.duration:.2f} s, seed {sound.seed}{fit})")
            for layer in sound.layers:
                _tell(f"  {layer}")
            if sound.coverage is not None and place == 0:  # candidates share their prompt
                _tell(f"  {sound.coverage['note']}")
        yield path


def _tell(line: str) -> None:
    """Print a line; a reader that has gone away (`| head -1`) costs no sound."""
    try:
        typer.echo(line)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
