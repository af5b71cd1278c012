"""The parts of a server, and a request's path through them: check, queue, wait, answer."""

from __future__ import annotations

import asyncio
import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from diffsound.errors import ConfigError, InputError
from diffsound.generation import edits
from diffsound.generation.jobs import make_jobs
from diffsound.generation.loops import NOT_FOR_EDITS
from diffsound.generation.pipeline import TextToSound
from diffsound.generation.settings import check_takes
from diffsound.serving.access import Allowances, KeyRing
from diffsound.serving.answers import AnswerSpace, file_bytes
from diffsound.serving.batching import BatchEngine
from diffsound.serving.errors import (
    CancelledError,
    NotFoundError,
    NotReadyError,
    TimedOutError,
)
from diffsound.serving.jobs import JobBook
from diffsound.serving.schemas import (
    ClipSource,
    Drawing,
    Extend,
    FileRequest,
    GenerateRequest,
    Inpaint,
    Vary,
    check_fields,
)
from diffsound.serving.settings import MEBIBYTE, Limits, ServerSettings
from diffsound.serving.sounds import SoundStore, read_upload
from diffsound.serving.tasks import Choose, Listener, Recipe, Task, on_loop
from diffsound.serving.telemetry import Metrics

if TYPE_CHECKING:
    from diffsound.generation.edits import Edit
    from diffsound.generation.sound import Sound

Load = Callable[[], Mapping[str, TextToSound]]
JOB_SECONDS, JOB_BYTES = 600.0, 32 * MEBIBYTE
SWEEP_SECONDS = 30.0  # at most, between checks for what has expired
MAX_EXAMPLES = 12
_HEADING = re.compile(r"#+\s+(.*)")
_BULLET = re.compile(r"\s*[-*]\s+(.*)")

# For a card that lists none: common sounds of the data sets the field trains on.
_COMMON_PROMPTS = [
    "a dog barks",
    "heavy rain on a roof",
    "someone knocks on a wooden door",
    "crickets at night",
    "an audience applauds",
    "footsteps on gravel",
]
DECODES_AT_ONCE = 2  # uploads; decoding takes memory, and others wait


class Service:
    """What the endpoints share."""

    def __init__(self, settings: ServerSettings, load: Load | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.store = SoundStore(settings.keep_bytes, settings.keep_seconds)
        self.jobs = JobBook(JOB_SECONDS, JOB_BYTES)
        self.keys = KeyRing(settings.api_keys, settings.api_keys_file)
        self.allowances = Allowances(settings.limits)
        self.engine = BatchEngine(
            load or (lambda: load_pipelines(settings)),
            metrics=self.metrics,
            lanes=settings.lanes,
            max_batch=settings.max_batch,
            queue=settings.limits.queue,
            grace=settings.shutdown_timeout,
        )
        self.metrics.watch("kept_bytes", lambda: self.store.bytes, kind="sounds")
        self.metrics.watch("kept_bytes", lambda: self.jobs.bytes, kind="jobs")
        self.answers = AnswerSpace(settings.limits.answer_bytes)
        self._decodes = asyncio.Semaphore(DECODES_AT_ONCE)

    async def sweep(self) -> None:
        """Drop what has expired, again and again; otherwise an idle server would keep it."""
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, self.settings.keep_seconds / 4))
            self.store.sweep()
            self.jobs.sweep()

    @property
    def limits(self) -> Limits:
        """What a request may ask for; of steps, no more than some loaded model has."""
        found = [_timesteps(pipeline) for pipeline in self.engine.pipelines.values()]
        return _narrowed(self.settings.limits, max(found, key=lambda one: one or 0, default=None))

    def pipeline(self, name: str | None) -> tuple[str, TextToSound]:
        """A loaded bundle by name, the default one for None."""
        pipelines = self.engine.pipelines
        if not self.engine.loaded.is_set():
            raise NotReadyError("the model is being loaded; try again in a moment")
        if name is None:
            name = next(iter(pipelines))
        if name not in pipelines:
            raise NotFoundError(f"there is no such bundle; there are: {', '.join(pipelines)}")
        return name, pipelines[name]

    async def _task(self, request: Drawing, caller: str, listener: Listener | None) -> Task:
        """A checked request as work, not queued yet; it counts against the caller's quota."""
        name, pipeline = self.pipeline(request.bundle)
        check_fields(request, _narrowed(self.settings.limits, _timesteps(pipeline)))
        self._check_stride(request.stride, _timesteps(pipeline))
        best_of = pipeline.settings(**request.sampling()).best_of
        make_edit: Callable[[TextToSound], Edit] | None = None
        choose: Choose | None = None
        if isinstance(request, GenerateRequest):
            check_takes(request.num_candidates, request.keep, request.variations, loop=request.loop)
            if request.keep is not None:
                pipeline.check_keep(request.keep, request.num_candidates)
                choose = functools.partial(pipeline.rank, keep=request.keep)
            if request.duration is not None:
                seconds = request.duration
            else:  # no longer than the server makes: nobody asked for more
                natural = await run_in_threadpool(pipeline.natural_duration, request.prompt)
                seconds = min(natural, self.settings.limits.duration)
        elif isinstance(request, Inpaint | Extend | Vary):
            if request.loop:
                raise InputError(NOT_FOR_EDITS)
            clip = await self.clip(request, pipeline)
            seconds = clip.duration + (request.seconds if isinstance(request, Extend) else 0.0)
            best_of = 1  # an edit is drawn once
            make_edit = _edit_of(request, clip)
        else:
            raise TypeError(f"not a request: {type(request).__name__}")
        jobs = make_jobs(request.prompt, request.num_made, request.seed, None)
        self._check_work(seconds, request.num_made, best_of)
        self.allowances.take_sound(caller, seconds * request.num_made)
        return Task(
            Recipe(name, seconds, request.negative_prompt or None, request.sampling()),
            jobs,
            timeout=self.settings.limits.timeout,
            make_edit=make_edit,
            choose=choose,
            listener=listener,
            varied=isinstance(request, GenerateRequest) and request.variations is not None,
        )

    def _check_stride(self, stride: int | None, timesteps: int | None) -> None:
        """Refuse a stride that makes more steps than a request may ask for."""
        most = self.settings.limits.steps
        if stride is not None and timesteps is not None and timesteps > most * stride:
            steps = math.ceil(timesteps / stride)
            raise InputError(
                f"a stride of {stride} makes {steps} steps; this server takes up to {most}"
            )

    def _check_work(self, seconds: float, candidates: int, best_of: int) -> None:
        """Refuse more sound than the server makes for one request."""
        limits = self.settings.limits
        if seconds > limits.duration + 1e-6:
            raise InputError(
                f"the duration is {seconds:g} s; this server makes up to {limits.duration:g} s"
            )
        work = seconds * candidates * best_of
        if work > limits.work + 1e-6:
            count = f"{candidates} sound{'s' if candidates > 1 else ''}"
            raise InputError(
                f"{count} of {seconds:g} s, the best of {best_of} each, means {work:g} s "
                f"of sound to draw; this server draws up to {limits.work:g} s for one request"
            )

    async def clip(self, source: ClipSource, pipeline: TextToSound) -> Sound:
        """The clip a request wants to edit."""
        if source.sound:
            if source.clip is not None:
                raise InputError("give a clip or the id of a sound, not both")
            return self.sound(source.sound)
        if source.clip is None:
            raise InputError("give a clip to edit: a file, or the id of a sound")
        try:
            async with self._decodes:
                return await run_in_threadpool(read_upload, source.clip.file, pipeline)
        finally:
            await source.clip.close()

    def sound(self, name: str) -> Sound:
        """A kept sound."""
        sound = self.store.get(name)
        if sound is None:
            raise NotFoundError("there is no such sound, or it has expired")
        return sound

    def reserve_file(self, request: Request, file: FileRequest, sound: Sound) -> None:
        """Count a sound's file among the answers that are being sent, or refuse it."""
        size = file_bytes(file, sound.duration, sound.sample_rate)
        self.answers.reserve(request.scope, size)

    async def make(self, drawing: Drawing, request: Request) -> list[Sound]:
        """The sounds of a request."""
        return await self._wait(await self.start(drawing, request), request)

    async def start(
        self, drawing: Drawing, request: Request, listener: Listener | None = None
    ) -> Task:
        """Check and queue a request; it ends in time even if no lane ever gets to it."""
        fields: dict[str, object] = {"candidates": drawing.num_made}
        if self.settings.log_prompts:
            fields["prompt"] = drawing.prompt
        request.scope["log_fields"] = fields
        task = await self._task(drawing, request.scope.get("caller", ""), listener)
        fields["sound_seconds"] = round(task.recipe.seconds * len(task.jobs), 3)
        self.engine.submit(task)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self.settings.limits.timeout + 0.1, lambda: task.ended)
        task.result.add_done_callback(lambda _: on_loop(loop, timer.cancel))
        return task

    async def _wait(self, task: Task, request: Request) -> list[Sound]:
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


def _timesteps(pipeline: TextToSound) -> int | None:
    """The most steps that a model can take; None if it has no such number."""
    return getattr(pipeline.bundle.config.decoder.model, "timesteps", None)


def _narrowed(limits: Limits, timesteps: int | None) -> Limits:
    if timesteps is None:
        return limits
    return limits.model_copy(update={"steps": min(limits.steps, timesteps)})


def example_prompts(card: str) -> list[str]:
    """The bullets under the card's heading "Example prompts" (any case, any level).

    >>> example_prompts("# M\\n## Example prompts\\n- a dog barks\\n* `rain`\\n## Data\\n- ESC-50")
    ['a dog barks', 'rain']
    """
    examples: list[str] = []
    inside = False
    for line in card.splitlines():
        if heading := _HEADING.match(line):
            inside = "example prompts" in heading[1].lower()
        elif inside and (bullet := _BULLET.match(line)):
            examples.append(bullet[1].strip().strip('`"“”'))
    return [text for text in examples if text][:MAX_EXAMPLES] or _COMMON_PROMPTS


def _edit_of(request: Inpaint | Extend | Vary, clip: Sound) -> Callable[[TextToSound], Edit]:
    if isinstance(request, Inpaint):
        region = request.start, request.end, request.low, request.high
        return lambda pipeline: edits.inpaint(pipeline.bundle, clip, *region)
    if isinstance(request, Extend):
        return lambda pipeline: edits.extend(pipeline.bundle, clip, request.seconds)
    return lambda pipeline: edits.vary(pipeline.bundle, clip, request.strength)


async def _hang_up(request: Request) -> None:
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
