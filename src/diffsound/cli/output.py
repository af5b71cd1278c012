"""From options to files: make the sounds, write them, print their paths, play them."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from diffsound.cli.options import MakingOptions
from diffsound.errors import AudioError, InputError
from diffsound.files import make_folder
from diffsound.generation.settings import (
    FORMATS,
    SHORT_SEEDS,
    GivenOutput,
    OutputSettings,
    TakeSettings,
    check,
    layer_paths,
    slug,
)
from diffsound.text import clean_prompt

if TYPE_CHECKING:
    from diffsound.generation.sound import Sound
    from diffsound.judges.ranking import Ranker

STANDARD_OUTPUT = Path("-")


def make_sounds(
    draw: Callable[..., list[Sound]],
    prompt: str,
    target: Target,
    making: MakingOptions,
    *,
    keep: int | None = None,
    ranker: Ranker | None = None,
) -> None:
    """Draw sounds with `draw(pipeline, **options)`, write them, and play them if asked.

    Prompts, takes and targets that cannot be used are refused before the model is loaded.
    keep: number of candidates that `draw` returns; None is all. ranker: chooses them.
    """
    clean_prompt(prompt)
    check(TakeSettings, {"num_candidates": making.candidates, "seed": making.seed})
    target.check()
    delivery = making.delivery
    check_delivery(target.ending, delivery, loop=bool(making.settings.get("loop")))
    player: list[str] = []
    if making.play_it:
        from diffsound.audio.player import find_player, play

        player = find_player(target.ending)
    seeds = choose_seeds(making.seed, making.candidates)
    target.check_free(prompt, seeds, making.candidates if keep is None else keep)
    pipeline = making.load(ranker)
    with progress_bar(prompt[:40], making.quiet or making.as_json) as show:
        sounds = draw(
            pipeline,
            seed=seeds[0],
            num_candidates=making.candidates,
            callback=lambda share, tokens: show(share),
            **making.settings,
        )
    if target.output == STANDARD_OUTPUT:
        _write_to_stdout(sounds[0].encode(target.ending, **delivery))
        return
    for path in write_sounds(sounds, target, delivery, as_json=making.as_json, quiet=making.quiet):
        if player:
            play(player, path)


@contextmanager
def progress_bar(label: str, quiet: bool = False) -> Iterator[Callable[[float], None]]:
    """Yield a function taking the share done, 0 to 1; shows nothing unless stderr is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda share: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=1.0)
        yield lambda share: progress.update(task, completed=share)


@dataclass(frozen=True)
class Target:
    """The files of one command.

    output: the file asked for, numbered when there are several sounds; "-" is standard output.
    Without it files are named from prompt and seed, in `folder`.
    """

    output: Path | None
    folder: Path = Path()
    file_format: str = "wav"
    spectrogram: bool = False
    overwrite: bool = False
    stems: bool = False

    @classmethod
    def asked(
        cls,
        making: MakingOptions,
        *,
        folder: Path | None = None,
        file_format: str | None = None,
        stems: bool = False,
    ) -> Target:
        """The target that the options describe; options that would be ignored are refused."""
        output = making.output
        if output == STANDARD_OUTPUT:
            unused = {
                "--output-dir": folder is not None,
                "--spectrogram": making.spectrogram,
                "--stems": stems,
                "--json": making.as_json,
                "--play": making.play_it,
            }
            for option in (option for option, given in unused.items() if given):
                raise InputError(f"{option} does not work with -o -; give a file name")
        elif output is not None:
            if folder is not None:
                raise InputError("--output-dir does not work with -o; give one of them")
            ending = output.suffix.lower().lstrip(".")
            if file_format not in (None, ending):
                raise InputError(
                    f"-o {output} contradicts --format {file_format}; give one of them"
                )
        return cls(
            output,
            folder or Path(),
            file_format or "wav",
            making.spectrogram,
            making.overwrite,
            stems,
        )

    @property
    def ending(self) -> str:
        """The format of the files."""
        if self.output in (None, STANDARD_OUTPUT):
            return self.file_format
        return self.output.suffix.lower().lstrip(".")

    def check(self) -> None:
        """Refuse a target that cannot be written, before any work is done."""
        if self.output in (None, STANDARD_OUTPUT):
            if self.file_format not in FORMATS:
                raise InputError(
                    f"unknown format '{self.file_format}'; there are: {', '.join(FORMATS)}"
                )
            if self.folder.exists() and not self.folder.is_dir():
                raise AudioError(f"{self.folder} is a file, not a folder")
            if self.output is not None and sys.stdout.isatty():
                raise InputError("-o - writes audio, which a terminal cannot show; pipe it")
            return
        if self.ending not in FORMATS:
            if self.output.is_dir():
                raise InputError(f"{self.output} is a folder; use --output-dir {self.output}")
            raise InputError(
                f"cannot write '{self.output.name}'; end its name in .{', .'.join(FORMATS)}"
            )
        if not self.output.parent.is_dir():
            raise AudioError(f"the folder {self.output.parent} does not exist")

    def paths(self, prompt: str, seeds: Sequence[int], count: int) -> list[Path]:
        """Every path that may be written for `count` sounds with some of these seeds."""
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
        if self.output == STANDARD_OUTPUT:
            if count != 1:
                raise InputError(f"-o - takes one sound, not {count}; leave out -n or add --keep 1")
            return
        for path in [] if self.overwrite else self.paths(prompt, seeds, count):
            for wanted in self._beside(path):
                if wanted.exists():
                    raise AudioError(
                        f"{wanted} exists; choose another name or seed, or add --overwrite"
                    )

    def _beside(self, path: Path) -> list[Path]:
        """The file of a sound, and those that may be written beside it."""
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


def check_delivery(file_format: str, delivery: GivenOutput, *, loop: bool) -> None:
    """Refuse files that cannot be written as asked for, before any work is done."""
    from diffsound.audio.io import check_encoding

    output = OutputSettings(**delivery)
    check_encoding(file_format, output.bits, output.rate or 22050)
    if loop and output.trim:
        raise InputError("--trim would open the loop; leave it out")


def choose_seeds(seed: int | None, candidates: int) -> list[int]:
    """The candidates' seeds; drawn here if none is given, so that file names are known early."""
    first = secrets.randbelow(SHORT_SEEDS) if seed is None else seed
    return [first + place for place in range(max(1, candidates))]


def write_sounds(
    sounds: Sequence[Sound],
    target: Target,
    delivery: GivenOutput,
    *,
    as_json: bool = False,
    quiet: bool = False,
) -> Iterator[Path]:
    """Save every sound and print its path; yields the paths."""
    for place, sound in enumerate(sounds):
        path = target.path(sound, place, len(sounds))
        make_folder(path.parent)
        sound.save(path, overwrite=target.overwrite, **delivery)
        picture = sound.save_spectrogram(path.with_suffix(".png")) if target.spectrogram else None
        if target.stems:
            sound.save_layers(path, overwrite=target.overwrite, **delivery)
            if not sound.layers and not quiet:
                typer.echo(f"note: {path} is one sound; --stems found no layers to write", err=True)
        if as_json:
            from diffsound.audio.io import audio_seconds

            line = sound.metadata | {
                "file": str(path),
                "seconds": round(audio_seconds(path), 3),
                "sample_rate": delivery.get("rate") or sound.sample_rate,
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


def _write_to_stdout(data: bytes) -> None:
    """Write to standard output; a reader that closed the pipe is not an error."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(line: str) -> None:
    """Print a line; if the reader closed the pipe (`| head -1`), sounds are still written."""
    try:
        typer.echo(line)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
