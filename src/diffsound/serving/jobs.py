"""Jobs: requests whose progress can be watched, and whose events can be read again."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from diffsound.serving.errors import CancelledError, public_message
from diffsound.serving.schemas import JobAnswer, Operation, SoundAnswer
from diffsound.serving.sounds import SoundStore, describe, preview_url
from diffsound.serving.tasks import Listener, Task, on_loop

if TYPE_CHECKING:
    from torch import Tensor

    from diffsound.generation.pipeline import TextToSound
    from diffsound.generation.sound import Sound

KEEP_ALIVE_SECONDS = 15.0
# A preview may take this share of the time, whatever the model and the machine.
PREVIEW_SHARE = 0.1
# Of a record without its texts.
RECORD_BYTES = 16 * 1024

Status = Literal["queued", "running", "done", "failed", "cancelled"]


@dataclass(eq=False)
class JobRecord:
    """A job as its readers see it. Used by the server's loop only.

    Sounds are kept as JSON text, which is a tenth of the size of the objects it describes. The
    task is dropped when it has ended, and the waves with it: the store alone decides about those.
    """

    operation: Operation
    count: int
    id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    status: Status = "queued"
    shares: dict[int, float] = field(default_factory=dict)
    sounds: dict[int, str] = field(default_factory=dict)
    error: str | None = None
    ended_at: float | None = None
    task: Task | None = None
    readers: int = 0
    bytes: int = RECORD_BYTES  # its size, which counts towards the limit of all jobs
    _events: list[str | None] = field(default_factory=list)
    _latest: dict[str, int] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def progress(self) -> float:
        return min(1.0, sum(self.shares.values()) / self.count)

    def answer(self) -> JobAnswer:
        return JobAnswer(
            id=self.id,
            operation=self.operation,
            status=self.status,
            progress=round(self.progress, 4),
            url=f"/v1/jobs/{self.id}",
            events_url=f"/v1/jobs/{self.id}/events",
            sounds=[
                SoundAnswer.model_validate_json(self.sounds[item]) for item in sorted(self.sounds)
            ],
            error=self.error,
        )

    def add(self, name: str, data: str, group: str | None = None) -> None:
        """Append an event and wake the readers; it replaces an earlier one of the same group."""
        if group is not None:
            self._drop(group)
            self._latest[group] = len(self._events)
        event = f"id: {len(self._events) + 1}\nevent: {name}\ndata: {data}\n\n"
        self._events.append(event)
        self.bytes += len(event)
        self._news.set()
        self._news = asyncio.Event()

    def on_progress(self, item: int, share: float) -> None:
        if self.ended_at is None:
            self.status = "running"
            self.shares[item] = share
            data = {"item": item, "share": round(share, 4), "progress": round(self.progress, 4)}
            self.add("progress", _json(data), f"progress-{item}")

    def on_preview(self, item: int, url: str) -> None:
        if self.ended_at is None and item not in self.sounds:
            self.add("preview", _json({"item": item, "image": url}), f"preview-{item}")

    def on_sound(self, item: int, sound: str) -> None:
        """sound: a SoundAnswer as JSON."""
        if self.ended_at is None:
            self.shares[item] = 1.0
            self.sounds[item] = sound
            self.bytes += len(sound)
            self._drop(f"preview-{item}")
            self.add("sound", f'{{"item":{item},"sound":{sound}}}')

    def _drop(self, group: str) -> None:
        """Forget the event of a group, if it has one."""
        place = self._latest.pop(group, None)
        if place is not None:
            self.bytes -= len(self._events[place] or "")
            self._events[place] = None

    def finish(self, error: BaseException | None) -> None:
        """The last event: done, failed or cancelled."""
        self.ended_at = time.monotonic()
        self.task = None
        for item in range(self.count):
            self._drop(f"preview-{item}")
        if error is None:
            self.status = "done"
        else:
            self.status = "cancelled" if isinstance(error, CancelledError) else "failed"
            self.error = public_message(error)
        self.add(self.status, _json({} if error is None else {"detail": self.error}))

    async def stream(self, after: int = 0) -> AsyncIterator[str]:
        """The events as server-sent ones, from number `after` + 1 on, until the job has ended."""
        cursor = max(0, after)
        self.readers += 1
        try:
            while True:
                news = self._news
                while cursor < len(self._events):
                    event = self._events[cursor]
                    cursor += 1
                    if event is not None:
                        yield event
                if self.ended_at is not None:
                    return
                try:
                    await asyncio.wait_for(news.wait(), KEEP_ALIVE_SECONDS)
                except TimeoutError:
                    yield ": still here\n\n"
        finally:
            self.readers -= 1


class JobListener(Listener):
    """Passes the lanes' reports on to the loop's record."""

    def __init__(
        self, record: JobRecord, store: SoundStore, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._record = record
        self._store = store
        self._loop = loop
        self._next_preview: dict[int, float] = {}

    def wants_preview(self, item: int) -> bool:
        watched = self._record.readers > 0
        return watched and time.monotonic() >= self._next_preview.get(item, 0.0)

    def on_progress(self, item: int, share: float) -> None:
        on_loop(self._loop, self._record.on_progress, item, share)

    def on_preview(self, item: int, pipeline: TextToSound, tokens: Tensor) -> None:
        start = time.monotonic()
        url = preview_url(pipeline, tokens)
        end = time.monotonic()
        self._next_preview[item] = end + (end - start) * (1 / PREVIEW_SHARE - 1)
        on_loop(self._loop, self._record.on_preview, item, url)

    def on_sound(self, item: int, sound: Sound) -> None:
        answer = describe(sound, self._store.add(sound))
        on_loop(self._loop, self._record.on_sound, item, answer.model_dump_json())


class JobBook:
    """The jobs of a server. Used by the loop only.

    Ended ones are forgotten after `keep_seconds`, and the oldest of them when all have more than
    `keep_bytes`.
    """

    def __init__(self, keep_seconds: float, keep_bytes: int) -> None:
        self._keep_seconds = keep_seconds
        self._keep_bytes = keep_bytes
        self._jobs: OrderedDict[str, JobRecord] = OrderedDict()

    def __iter__(self) -> Iterator[JobRecord]:
        return iter(self._jobs.values())

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def bytes(self) -> int:
        """The size of all jobs that are kept."""
        return sum(job.bytes for job in self)

    def get(self, name: str) -> JobRecord | None:
        self.sweep()
        return self._jobs.get(name)

    def open(self, record: JobRecord, task: Task) -> None:
        """Keep a job, and end its record when its task ends."""
        self.sweep()
        record.task = task
        self._jobs[record.id] = record
        loop = asyncio.get_running_loop()
        task.result.add_done_callback(
            lambda future: on_loop(loop, record.finish, future.exception())
        )

    def sweep(self) -> None:
        """Forget jobs that are too old or too large in total."""
        oldest = time.monotonic() - self._keep_seconds
        surplus = self.bytes - self._keep_bytes
        for job in list(self):
            if job.ended_at is not None and (surplus > 0 or job.ended_at < oldest):
                surplus -= job.bytes
                del self._jobs[job.id]


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))
