"""Audio files in folder trees and tar files, found without following anything outside or in circles."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from diffsound.data.record import AudioLocation
from diffsound.data.sources.base import SourceReport
from diffsound.errors import DataError

AUDIO_SUFFIXES = frozenset(
    [".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".au", ".caf", ".w64", ".rf64"]
)
# Known to hold audio, but libsndfile cannot read them: said, rather than overlooked.
FOREIGN_SUFFIXES = frozenset([".m4a", ".aac", ".wma", ".mp4", ".webm", ".mkv", ".amr", ".ape"])


class AudioFinder:
    """Locations by file stem ("YTID_30" of "a/YTID_30.wav"), from a folder tree and its tars."""

    def __init__(self, root: Path, report: SourceReport) -> None:
        self._by_stem: dict[str, AudioLocation] = {}
        for location in walk_audio(root, report):
            stem = PurePosixPath(location.member or location.path).stem
            first = self._by_stem.setdefault(stem, location)
            if first is not location:
                report.note(f"'{stem}' is there twice; {location} is left out for {first}")

    def __len__(self) -> int:
        return len(self._by_stem)

    def find(self, stems: Iterable[str]) -> AudioLocation | None:
        """The first of the stems that exists."""
        return next((self._by_stem[stem] for stem in stems if stem in self._by_stem), None)


def walk_audio(root: Path, report: SourceReport) -> Iterator[AudioLocation]:
    """Every audio file under `root` in sorted order; tars are looked into where they stand."""
    if root.is_file():
        yield from tar_audio(root, report)
        return
    for path in walk_files(root, report):
        suffix = path.suffix.lower()
        if suffix in AUDIO_SUFFIXES:
            yield AudioLocation(str(path))
        elif suffix == ".tar":
            yield from tar_audio(path, report)
        elif suffix in FOREIGN_SUFFIXES:
            report.skip(str(path.relative_to(root)), f"{suffix} files cannot be read; convert them")


def walk_files(root: Path, report: SourceReport) -> Iterator[Path]:
    """Every file under `root` in sorted order; links are followed, a folder is entered once."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder")
    seen: set[tuple[int, int]] = set()

    def enter(folder: Path) -> Iterator[Path]:
        try:
            status = folder.stat()
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            report.note(f"cannot look into {folder}: {error.strerror or error}")
            return
        if (status.st_dev, status.st_ino) in seen:
            report.note(f"{folder} was already looked at (a link in a circle?); left out")
            return
        seen.add((status.st_dev, status.st_ino))
        for entry in entries:
            try:
                if entry.is_dir():
                    yield from enter(Path(entry.path))
                elif entry.is_file():
                    yield Path(entry.path)
                elif entry.is_symlink():
                    report.note(f"{entry.path} is a broken link; left out")
            except OSError as error:
                report.note(f"cannot look at {entry.path}: {error.strerror or error}")

    yield from enter(root)


def tar_audio(path: Path, report: SourceReport) -> Iterator[AudioLocation]:
    """The audio members of an uncompressed tar. Nothing is unpacked: members are read in place."""
    try:
        with tarfile.open(path, mode="r:") as tar:
            for member in tar:
                name = PurePosixPath(member.name)
                if name.suffix.lower() not in AUDIO_SUFFIXES:
                    continue
                if name.is_absolute() or ".." in name.parts:
                    report.skip(f"{path.name}::{member.name}", "its name leads out of the tar")
                elif not member.isreg():
                    report.skip(f"{path.name}::{member.name}", "not a plain file in the tar")
                else:
                    yield AudioLocation(
                        str(path), member=member.name, span=(member.offset_data, member.size)
                    )
    except (OSError, tarfile.TarError) as error:
        # What came before the damage is kept: losing one clip is better than losing the tar.
        report.note(f"{path} is damaged or compressed ({error}); read up to there")


def inside(root: Path, name: str) -> Path | None:
    """`root / name`, or None when the name leads out of the root."""
    parts = PurePosixPath(name.replace("\\", "/"))
    if not name or parts.is_absolute() or ".." in parts.parts or "\0" in name:
        return None
    return root / parts
