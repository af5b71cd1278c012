"""From a source to a prepared folder of tar shards (same input, same bytes).

The plan is the source's records in order, cut into shards of a fixed number. Each shard is one task
of an engine and is written by the process that makes it, so that many machines write at once. A
shard's sidecar records the plan it was made from; a rerun makes only shards whose plan is new.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from diffsound.data.clip import PreparedClip, PrepareSettings, prepare_clip
from diffsound.data.duplicates import near_duplicates, pack_fingerprint, unpack_fingerprint
from diffsound.data.engines import MapEngine, SerialEngine
from diffsound.data.record import Record
from diffsound.data.shards import (
    ClipsIndex,
    Rejected,
    ShardInfo,
    check_same_settings,
    read_index,
    read_sidecar,
    sidecar_path,
    write_index,
    write_shard,
    writing,
)
from diffsound.data.tables import Source, SourceReport
from diffsound.errors import DataError, DiffsoundError
from diffsound.files import sweep
from diffsound.threads import torch_threads

# A temporary file this old belongs to a killed run, not to one working at the same time.
_ABANDONED_SECONDS = 3600


@dataclass(frozen=True)
class ShardTask:
    """One shard to make: its records and everything needed to make it anywhere."""

    number: int
    records: tuple[Record, ...]
    settings: PrepareSettings
    folder: str
    root: str

    @property
    def plan(self) -> str:
        """Changes when a record, a file's size or its place in the source changes."""
        described = [
            [record.to_json(), *_origin(record, self.root), _size(record)]
            for record in self.records
        ]
        settings = self.settings.model_dump(mode="json")
        return hashlib.sha256(json.dumps([settings, described]).encode()).hexdigest()


@dataclass(frozen=True)
class ShardResult:
    """The result of a shard. sounds: id -> (seconds, packed fingerprint)."""

    info: ShardInfo
    rejected: tuple[tuple[str, str], ...]
    sounds: dict[str, tuple[float, str]]
    reused: bool

    @classmethod
    def of(cls, path: Path, sidecar: Mapping[str, Any], *, reused: bool = False) -> ShardResult:
        """What the sidecar of a finished shard says."""
        sounds = {key: (float(value[0]), str(value[1])) for key, value in sidecar["sounds"].items()}
        info = ShardInfo(
            name=path.name,
            clips=len(sounds),
            seconds=round(sum(seconds for seconds, _ in sounds.values()), 3),
            bytes=sidecar["bytes"],
            sha256=sidecar["sha256"],
        )
        rejected = tuple((str(key), str(reason)) for key, reason in sidecar["rejected"])
        return cls(info, rejected, sounds, reused)


@dataclass(frozen=True)
class PrepareResult:
    """A finished preparation and how fast it was."""

    index: ClipsIndex
    made: int  # clips prepared in this run; the others existed
    made_seconds: float
    elapsed: float


def prepare(
    source: Source,
    folder: str | Path,
    settings: PrepareSettings | None = None,
    engine: MapEngine | None = None,
    progress: Callable[[ShardResult], None] | None = None,
) -> PrepareResult:
    """Prepare a source into a folder. `progress` is called with every finished shard."""
    settings = settings or PrepareSettings()
    started, every = time.perf_counter(), settings.model_dump(mode="json")
    folder = _open_folder(folder, source.name, every)
    report = SourceReport()
    results = []
    wanted = batches(_wanted(source, settings, report), settings.clips_per_shard)
    tasks = (
        ShardTask(number, tuple(batch), settings, str(folder), str(source.root))
        for number, batch in enumerate(wanted)
    )
    for result in (engine or SerialEngine()).map(make_shard, tasks):
        results.append(result)
        if progress is not None:
            progress(result)
    index = _finish(folder, source.name, every, results, report)
    if not index.clips:
        first = "".join(f"; the first: {clip.id}: {clip.reason}" for clip in index.rejected[:1])
        raise DataError(
            f"no clip of {source.root} could be used ({len(index.rejected)} rejected{first})"
        )
    new = [result.info for result in results if not result.reused]
    return PrepareResult(
        index,
        made=sum(info.clips for info in new),
        made_seconds=sum(info.seconds for info in new),
        elapsed=time.perf_counter() - started,
    )


def write_clips(
    folder: str | Path,
    clips: Iterable[PreparedClip],
    settings: PrepareSettings,
    *,
    source: str,
    made_with: Mapping[str, Any] | None = None,
) -> ClipsIndex:
    """Write clips made in memory, such as mixed scenes, as a prepared folder.

    made_with: settings of the maker, stored in the index next to `settings`.
    """
    every = {**settings.model_dump(mode="json"), **(made_with or {})}
    folder = _open_folder(folder, source, every)
    results = []
    for number, batch in enumerate(batches(clips, settings.clips_per_shard)):
        path = folder / shard_name("clips", number)
        results.append(_write_clips_shard(path, batch, settings, plan="", rejected=[]))
    return _finish(folder, source, every, results, SourceReport())


def make_shard(task: ShardTask) -> ShardResult:
    """Make one shard unless it exists; bad clips are left out and named."""
    path = Path(task.folder) / shard_name("clips", task.number)
    existing = read_sidecar(path)
    if existing is not None and existing.get("plan") == task.plan:
        return ShardResult.of(path, existing, reused=True)
    clips: list[PreparedClip] = []
    rejected: list[tuple[str, str]] = []
    for record in task.records:
        try:
            made = prepare_clip(record, task.settings)
        except Exception as error:  # a bad clip of whatever kind must not stop the others
            rejected.append((record.id, _reason(error, record, task.root)))
            continue
        name, member = _origin(record, task.root)
        for clip in made:
            clip.preparation["origin"] = f"{name}::{member}" if member else name
        clips += made
    return _write_clips_shard(path, clips, task.settings, task.plan, rejected)


def batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


def shard_name(kind: str, number: int) -> str:
    return f"{kind}-{number:06d}.tar"


def remove_stale(folder: Path, kind: str, keep: int) -> None:
    """Remove what earlier runs left: shards past the last one, and files a killed run began."""
    for path in sorted(folder.glob(f"{kind}-*.tar")):
        match = re.fullmatch(rf"{kind}-(\d{{6,}})\.tar", path.name)
        if match and int(match[1]) >= keep:
            path.unlink()
            sidecar_path(path).unlink(missing_ok=True)
    sweep(folder, _ABANDONED_SECONDS)


def _write_clips_shard(
    path: Path,
    clips: Iterable[PreparedClip],
    settings: PrepareSettings,
    plan: str,
    rejected: list[tuple[str, str]],
) -> ShardResult:
    sounds: dict[str, tuple[float, str]] = {}

    def entries() -> Iterator[tuple[str, dict[str, bytes]]]:
        for clip in clips:
            record = clip.record
            if record.id in sounds:
                rejected.append((record.id, "duplicated id"))
                continue
            members, fingerprint = clip.files(settings)
            sounds[record.id] = (record.seconds or 0.0, pack_fingerprint(fingerprint))
            yield record.id, members

    with torch_threads(1):  # a process per core, and sums that keep one order
        # The sidecar's values are filled in while the entries are written.
        sidecar = {"plan": plan, "rejected": rejected, "sounds": sounds}
        return ShardResult.of(path, write_shard(path, entries(), sidecar))


def _open_folder(folder: str | Path, source: str, settings: dict[str, Any]) -> Path:
    folder = Path(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    before = read_index(ClipsIndex, folder)
    if before is None or not any(folder.glob("clips-*.tar")):
        write_index(ClipsIndex(complete=False, source=source, settings=settings), folder)
    else:
        old = {"source": before.source, **before.settings}
        check_same_settings(old, {"source": source, **settings}, folder)
    return folder


def _finish(
    folder: Path,
    source: str,
    settings: dict[str, Any],
    results: list[ShardResult],
    report: SourceReport,
) -> ClipsIndex:
    sounds: dict[str, tuple[float, str]] = {}
    for result in results:
        for key in result.sounds.keys() & sounds.keys():
            raise DataError(f"two clips of {source} have the id '{key}'; rename one")
        sounds.update(result.sounds)
    rejected = [*report.skipped, *(pair for result in results for pair in result.rejected)]
    fingerprints = [unpack_fingerprint(packed) for _, packed in sounds.values()]
    index = ClipsIndex(
        complete=True,
        source=source,
        settings=settings,
        shards=tuple(result.info for result in results),
        clips=len(sounds),
        seconds=round(sum(seconds for seconds, _ in sounds.values()), 3),
        rejected=tuple(Rejected(id=key, reason=reason) for key, reason in rejected),
        notes=tuple(report.notes),
        near_duplicates=tuple(
            near_duplicates(
                list(sounds),
                np.stack(fingerprints) if fingerprints else np.zeros((0, 1)),
                [seconds for seconds, _ in sounds.values()],
            )
        ),
    )
    write_index(index, folder)
    remove_stale(folder, "clips", keep=len(results))
    return index


def _wanted(source: Source, settings: PrepareSettings, report: SourceReport) -> Iterator[Record]:
    """The records with a wanted licence, every id once."""
    seen: set[str] = set()
    for record in source.records(report):
        if record.id in seen:
            report.skip(record.id, "duplicated id")
            continue
        seen.add(record.id)
        if settings.licences is not None and record.licence not in settings.licences:
            report.skip(record.id, f"licence {record.licence} is not wanted")
            continue
        yield record


def _origin(record: Record, root: str) -> tuple[str, str | None]:
    """The audio's place relative to the source, so that shards do not depend on its location."""
    path = PurePath(record.audio.path)
    inside = path.relative_to(root) if path.is_relative_to(root) else PurePath(path.name)
    return inside.as_posix(), record.audio.member


def _size(record: Record) -> int:
    try:
        return record.audio.span[1] if record.audio.span else Path(record.audio.path).stat().st_size
    except OSError:
        return -1


def _reason(error: Exception, record: Record, root: str) -> str:
    """The reason without the source's location, so that the index does not depend on it."""
    text = " ".join(str(error).split()).replace(record.audio.path, _origin(record, root)[0])
    text = re.sub(r"^cannot (?:read|use) .*?: ", "", text)
    return text if isinstance(error, DiffsoundError) else f"{type(error).__name__}: {text}"
