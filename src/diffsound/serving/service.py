"""One server's parts, and the way of a request through them: check, queue, wait, answer."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from diffsound import editing
from diffsound.errors import ConfigError, InputError
from diffsound.jobs import make_jobs
from diffsound.pipeline import TextToSound
from diffsound.serving.batching import Engine
from diffsound.serving.jobs import JobBook
from diffsound.serving.limits import check_limits
from diffsound.serving.metrics import Metrics
from diffsound.serving.schemas import ClipSource, Drawing, Extend, GenerateRequest, Inpaint, Vary
from diffsound.serving.settings import ServerSettings
from diffsound.serving.sounds import SoundStore, read_upload
from diffsound.serving.tasks import (
    CancelledError,
    Choose,
    Listener,
    NotFoundError,
    NotReadyError,
    Recipe,
    Task,
    TimedOutError,
)

if TYPE_CHECKING:
    from diffsound.editing import Edit
    from diffsound.sound import Sound

Load = Callable[[], Mapping[str, TextToSound]]
JOB_SECONDS = 600.0
# Decoding an upload takes memory; so many at a time, the others wait.
UPLOADS_AT_ONCE = 2


class Service:
    """What the endpoints share."""

    def __init__(self, settings: ServerSettings, load: Load | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.store = SoundStore(settings.keep_bytes, settings.keep_seconds)
        self.jobs = JobBook(JOB_SECONDS)
        self.engine = Engine(
            load or (lambda: load_pipelines(settings)),
            metrics=self.metrics,
            lanes=settings.lanes,
            max_batch=settings.max_batch,
            queue=settings.limits.queue,
        )
        self._uploads = asyncio.Semaphore(UPLOADS_AT_ONCE)

    def pipeline(self, name: str | None) -> tuple[str, TextToSound]:
        """A loaded bundle by name, the default one for None."""
        pipelines = self.engine.pipelines
        if not self.engine.loaded.is_set():
            raise NotReadyError("the model is being loaded; try again in a moment")
        if name is None:
            name = next(iter(pipelines))
        if name not in pipelines:
            raise NotFoundError(f"there is no such bundle here; there are: {', '.join(pipelines)}")
        return name, pipelines[name]

    async def task(self, request: Drawing, listener: Listener | None = None) -> Task:
        """A checked request as work, not queued yet."""
        name, pipeline = self.pipeline(request.bundle)
        make_edit: Callable[[TextToSound], Edit] | None = None
        choose: Choose | None = None
        if isinstance(request, GenerateRequest):
            if request.keep is not None:
                pipeline.check_keep(request.keep, request.num_candidates)
                choose = functools.partial(pipeline.rank, keep=request.keep)
            default = pipeline.bundle.config.defaults.duration
            seconds = default if request.duration is None else request.duration
        elif isinstance(request, Inpaint | Extend | Vary):
            clip = await self.clip(request, pipeline)
            seconds = clip.duration + (request.seconds if isinstance(request, Extend) else 0.0)
            make_edit = _edit_of(request, clip)
        else:
            raise TypeError(f"not a request: {type(request).__name__}")
        check_limits(self.settings.limits, request, seconds)
        return Task(
            Recipe(name, seconds, request.negative_prompt or None, request.sampling()),
            make_jobs(request.prompt, request.num_candidates, request.seed, None),
            timeout=self.settings.limits.timeout,
            make_edit=make_edit,
            choose=choose,
            listener=listener,
        )

    async def clip(self, source: ClipSource, pipeline: TextToSound) -> Sound:
        """The clip a request wants to edit."""
        if source.sound:
            if source.clip is not None:
                raise InputError("give a clip or the id of a sound, not both")
            return self.sound(source.sound)
        if source.clip is None:
            raise InputError("give a clip to edit: a file, or the id of a sound")
        data = await source.clip.read()
        async with self._uploads:
            return await run_in_threadpool(read_upload, data, pipeline)

    def sound(self, name: str) -> Sound:
        """A kept sound."""
        sound = self.store.get(name)
        if sound is None:
            raise NotFoundError("there is no such sound, or it is gone by now")
        return sound

    def submit(self, task: Task) -> None:
        """Queue a task; it ends in time even if no lane ever gets to it."""
        self.engine.submit(task)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self.settings.limits.timeout + 0.1, lambda: task.ended)
        task.result.add_done_callback(lambda _: _on_loop(loop, timer.cancel))

    async def wait(self, task: Task, request: Request) -> list[Sound]:
        """The task's sounds; the task is cancelled if the caller hangs up first."""
        done = asyncio.ensure_future(asyncio.wrap_future(task.result))
        gone = asyncio.create_task(_hang_up(request))
        try:
            both: set[asyncio.Future[Any]] = {done, gone}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                raise CancelledError("the caller hung up")
            return done.result()
        except TimedOutError:
            self.metrics.stopped.inc()
            raise
        finally:
            gone.cancel()
            self.engine.forget(task)
            if not done.done():
                done.cancel()

    def note(self, request: Request, drawing: Drawing) -> None:
        """What the request's log line says besides the path."""
        fields: dict[str, object] = {"candidates": drawing.num_candidates}
        if self.settings.log_prompts:
            fields["prompt"] = drawing.prompt
        request.scope["log_fields"] = fields


def load_pipelines(settings: ServerSettings) -> dict[str, TextToSound]:
    """The settings' bundles by name."""
    pipelines: dict[str, TextToSound] = {}
    for source in settings.bundles or (None,):
        pipeline = TextToSound.from_pretrained(source, device=settings.device)
        name = pipeline.bundle.config.name
        if name in pipelines:
            raise ConfigError(f"two bundles are named '{name}'; rename one in its config.json")
        pipelines[name] = pipeline
    return pipelines


def _edit_of(request: Inpaint | Extend | Vary, clip: Sound) -> Callable[[TextToSound], Edit]:
    if isinstance(request, Inpaint):
        region = request.start, request.end, request.low, request.high
        return lambda pipeline: editing.inpaint(pipeline.chain, clip, *region)
    if isinstance(request, Extend):
        return lambda pipeline: editing.extend(pipeline.chain, clip, request.seconds)
    return lambda pipeline: editing.vary(pipeline.chain, clip, request.strength)


def _on_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)


async def _hang_up(request: Request) -> None:
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
