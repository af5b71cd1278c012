"""Where sounds go on disk, and what is said about them."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from diffsound.errors import AudioError, InputError

if TYPE_CHECKING:
    from diffsound.sound import Sound

FORMATS = ("wav", "flac", "ogg", "mp3")


def check_target(output: Path | None, folder: Path, file_format: str, overwrite: bool) -> None:
    """Refuse a target that cannot be written, before any work is done."""
    if output is None:
        if file_format not in FORMATS:
            raise InputError(f"unknown format '{file_format}'; there are: {', '.join(FORMATS)}")
        if folder.exists() and not folder.is_dir():
            raise AudioError(f"{folder} is a file, not a folder")
        return
    if output.suffix.lower().lstrip(".") not in FORMATS:
        raise InputError(
            f"cannot tell the format of '{output.name}'; end it in .{', .'.join(FORMATS)}"
        )
    if not output.parent.is_dir():
        raise AudioError(f"the folder {output.parent} does not exist")
    if output.exists() and not overwrite:
        raise AudioError(f"{output} exists; choose another name or add --overwrite")


def target_names(
    sounds: Sequence[Sound], output: Path | None, folder: Path, file_format: str
) -> list[Path]:
    """One path per sound: numbered beside `output`, or named from prompt and seed."""
    if output is None:
        return [folder / f"{slug(s.prompt)}-{s.seed}.{file_format}" for s in sounds]
    if len(sounds) == 1:
        return [output]
    return [
        output.with_name(f"{output.stem}-{i}{output.suffix}") for i in range(1, len(sounds) + 1)
    ]


def write_sounds(
    sounds: Sequence[Sound],
    targets: Sequence[Path],
    *,
    loudness: float | None,
    spectrogram: bool,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Save every sound and say where it is."""
    for sound, target in zip(sounds, targets, strict=True):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AudioError(f"cannot make the folder {target.parent}: {error.strerror}") from error
        sound.save(target, loudness=loudness, overwrite=overwrite)
        picture = sound.save_spectrogram(target.with_suffix(".png")) if spectrogram else None
        if as_json:
            line = sound.metadata | {
                "file": str(target),
                "seconds": round(sound.duration, 3),
                "sample_rate": sound.sample_rate,
            }
            if picture:
                line["spectrogram"] = str(picture)
            typer.echo(json.dumps(line, ensure_ascii=False))
        elif not quiet:
            also = f" and {picture}" if picture else ""
            typer.echo(f"{target}{also}  ({sound.duration:.2f} s, seed {sound.seed})")


def slug(prompt: str, limit: int = 48) -> str:
    """A file name's stem: ASCII letters, digits and dashes, cut at a word."""
    plain = unicodedata.normalize("NFKD", prompt).encode("ascii", "ignore").decode()
    words = re.findall(r"[a-z0-9]+", plain.lower())
    name = ""
    for word in words:
        longer = f"{name}-{word}" if name else word[:limit]
        if len(longer) > limit:
            break
        name = longer
    return name or "sound"
