"""Shards made from a prepared folder's shards, one for one: tokens, text features."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffsound.data.engines import Engine, SerialEngine
from diffsound.data.index import ShardInfo
from diffsound.data.prepare import one_thread, remove_stale, shard_name
from diffsound.data.shards import shard_members
from diffsound.data.tar import read_sidecar, read_span, write_error, write_shard
from diffsound.errors import DataError

# One model per process, by fingerprint: a worker makes many shards and loads once.
_loaded: dict[str, Any] = {}


@dataclass(frozen=True)
class Clip:
    """What a maker gets of a clip: its fields and its FLAC file."""

    fields: dict[str, Any]
    flac: bytes


@dataclass(frozen=True)
class DerivedTask:
    """One shard to make from one shard of clips.

    load: gives the model in the process that works. make: (model, settings, clips) -> the shard's
    entries (id, {suffix: bytes}) in the clips' order. Both must be picklable.
    """

    kind: str
    number: int
    clips: ShardInfo
    clips_folder: str
    folder: str
    fingerprint: str
    settings: dict[str, Any]
    load: Callable[[], Any]
    make: Callable[[Any, Mapping[str, Any], Iterator[Clip]], Iterator[tuple[str, dict[str, bytes]]]]

    @property
    def plan(self) -> str:
        """Changes when the clips or the settings change."""
        described = [self.fingerprint, self.settings, self.clips.sha256]
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def make_derived(
    tasks: list[DerivedTask],
    engine: Engine | None = None,
    progress: Callable[[ShardInfo], None] | None = None,
) -> tuple[ShardInfo, ...]:
    """Make the shards that are not there yet; all of them as the index lists them."""
    if not tasks:
        raise DataError("the prepared folder has no shards")
    infos = []
    for info in (engine or SerialEngine()).map(make_derived_shard, tasks):
        infos.append(info)
        if progress is not None:
            progress(info)
    remove_stale(Path(tasks[0].folder), tasks[0].kind, keep=len(tasks))
    return tuple(infos)


def make_derived_shard(task: DerivedTask) -> ShardInfo:
    """Make one shard, unless it is there already."""
    path = Path(task.folder) / shard_name(task.kind, task.number)
    sidecar = read_sidecar(path)
    if sidecar is None or sidecar.get("plan") != task.plan:
        if task.fingerprint not in _loaded:
            _loaded.clear()
            _loaded[task.fingerprint] = task.load()
        with one_thread():
            entries = task.make(_loaded[task.fingerprint], task.settings, _clips(task))
            sidecar = write_shard(path, entries, {"plan": task.plan})
    return ShardInfo(
        name=path.name,
        clips=len(sidecar["members"]),
        seconds=task.clips.seconds,
        bytes=sidecar["bytes"],
        sha256=sidecar["sha256"],
    )


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(folder, error) from error


def _clips(task: DerivedTask) -> Iterator[Clip]:
    folder = Path(task.clips_folder)
    path = folder / task.clips.name
    for spans in shard_members(folder, task.clips).values():
        fields = json.loads(read_span(path, spans["json"]))
        yield Clip(fields, read_span(path, spans["flac"]))
