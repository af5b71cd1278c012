"""Micro-batching: many requests, one model.

Requests wait in one queue, sound by sound. A lane (a thread) takes the next sound, together with
as many compatible ones (same bundle, duration and sampling settings) as its share of the backlog,
and makes them in one call. Every sound has its own prompt and seed and comes out as if it had been
made alone. On a CPU there is a lane per core: small matrix products on one core each are faster
than every product spread over all cores. A lone request gets all cores. On an accelerator one lane
with larger batches does better.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from diffsound.errors import DiffsoundError
from diffsound.serving.errors import NotReadyError, ServiceError, TooManyError
from diffsound.serving.tasks import Task
from diffsound.serving.telemetry import log

if TYPE_CHECKING:
    from torch import Tensor

    from diffsound.generation.pipeline import TextToSound
    from diffsound.generation.sound import Sound
    from diffsound.serving.telemetry import Metrics

MAX_CPU_LANES = 8
LANE_NICENESS = 5  # below the answering thread's, so that it answers while every core computes
LAST_STEP_SECONDS = 5.0  # that a lane gets to reach the end of its step when it must stop
Item = tuple[Task, int]  # a task and the number of one of its sounds


class _Abandoned(Exception):
    """No caller is waiting for any sound of this batch."""


class BatchEngine:
    """Loads the pipelines and runs tasks on them."""

    def __init__(
        self,
        load: Callable[[], Mapping[str, TextToSound]],
        *,
        metrics: Metrics,
        lanes: int | None = None,
        max_batch: int = 4,
        queue: int = 32,
        grace: float = 60.0,
    ) -> None:
        """grace: seconds that running work gets to finish once no more is taken."""
        self._load = load
        self._metrics = metrics
        self._lanes = lanes
        self._max_batch = max_batch
        self._queue = queue
        self._grace = grace
        self._changed = threading.Condition()
        self._waiting: deque[Task] = deque()  # those with sounds no lane has taken yet
        self._batches: list[list[Item]] = []  # one for each lane at work
        self._pace = 0.5  # seconds of work per second of sound, a running average
        self._stop_at: float | None = None  # when running work must end; None while not closing
        self._failed: BaseException | None = None
        self._threads: list[threading.Thread] = []
        self._cores = 1
        self.pipelines: Mapping[str, TextToSound] = {}
        self.loaded = threading.Event()
        self.settled = threading.Event()  # loaded, or failed to load
        metrics.watch("queue_length", lambda: len(self._waiting))
        metrics.watch("running", lambda: sum(map(len, list(self._batches))))

    @property
    def ready(self) -> bool:
        return self.loaded.is_set() and self._stop_at is None

    @property
    def failed(self) -> BaseException | None:
        """Why the bundles could not be loaded, if so."""
        return self._failed

    def start(self) -> None:
        """Load the bundles in the background, then open the lanes."""
        self._spawn(self._prepare, "loader")

    def submit(self, task: Task) -> None:
        """Queue a task, or refuse it with a ServiceError."""
        with self._changed:
            if not self.ready:
                raise NotReadyError(
                    "the model is being loaded; try again in a moment"
                    if self._stop_at is None
                    else "the server is shutting down"
                )
            self._drop_ended()
            if len(self._waiting) >= self._queue:
                self._metrics.refused.inc()
                raise TooManyError("too many requests are waiting", self._retry_after())
            self._waiting.append(task)
            self._changed.notify_all()

    def forget(self, task: Task) -> None:
        """Cancel a task; its place in the queue is free at once."""
        task.cancel()
        with self._changed:
            self._drop_ended()

    def drain(self) -> None:
        """Take no more work, refuse what has not started, and stop what does not finish in time."""
        with self._changed:
            if self._stop_at is not None:
                return
            self._stop_at = time.monotonic() + self._grace
            for task in self._waiting:
                if not task.started:
                    task.fail(NotReadyError("the server is shutting down"))
            self._drop_ended()
            self._changed.notify_all()
        timer = threading.Timer(self._grace, self.stop)
        timer.daemon = True
        timer.start()

    def stop(self) -> None:
        """Refuse waiting work and stop running work at its next step."""
        with self._changed:
            running = [task for batch in self._batches for task, _ in batch]
            for task in (*self._waiting, *running):
                task.fail(NotReadyError("the server is shutting down"))
            self._drop_ended()
            self._changed.notify_all()

    def close(self) -> bool:
        """Drain, and wait for running work; False if a lane is still inside a step."""
        self.drain()
        for seconds in (max(0.0, (self._stop_at or 0.0) - time.monotonic()), LAST_STEP_SECONDS):
            end = time.monotonic() + seconds
            for thread in self._threads:
                thread.join(max(0.0, end - time.monotonic()))
            if not any(thread.is_alive() for thread in self._threads):
                return True
            self.stop()
        return False

    def _spawn(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=f"diffsound-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _prepare(self) -> None:
        import torch

        start = time.monotonic()
        try:
            self.pipelines = self._load()
            for pipeline in self.pipelines.values():
                # The text encoder and the kernels' first use are loaded here, not in a request.
                pipeline("rain", duration=0.5, seed=0)
        except Exception as error:
            self._failed = error
            expected = isinstance(error, DiffsoundError)
            log("load failed", logging.ERROR, None if expected else error, reason=str(error))
            self.settled.set()
            return
        self._cores = torch.get_num_threads()
        on_cpu = all(p.device.type == "cpu" for p in self.pipelines.values())
        self._lanes = self._lanes or (min(self._cores, MAX_CPU_LANES) if on_cpu else 1)
        for number in range(self._lanes):
            self._spawn(self._lane, f"lane-{number}")
        self.loaded.set()
        self.settled.set()
        log(
            "ready",
            bundles=list(self.pipelines),
            lanes=self._lanes,
            seconds=round(time.monotonic() - start, 2),
        )

    def _lane(self) -> None:
        if sys.platform == "linux":  # where threads have priorities of their own
            lane = threading.get_native_id()
            niceness = os.getpriority(os.PRIO_PROCESS, lane) + LANE_NICENESS
            os.setpriority(os.PRIO_PROCESS, lane, niceness)
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Make the next batch; False when none is left.

        A separate function, so that a waiting lane does not hold on to the sounds it made last.
        """
        batch = self._take()
        if not batch:
            return False
        seconds = batch[0][0].recipe.seconds
        start = time.monotonic()
        try:
            self._make(batch)
        finally:
            took = time.monotonic() - start
            with self._changed:
                self._batches.remove(batch)
                self._pace += 0.2 * (took / (seconds * len(batch)) - self._pace)
            self._metrics.batch_size.observe(len(batch))
            self._metrics.batch_seconds.observe(took)
        return True

    def _take(self) -> list[Item]:
        """The next batch; empty when the server is closing and nothing is left."""
        with self._changed:
            while True:
                self._drop_ended()
                if self._waiting:
                    batch = self._pick()
                    self._batches.append(batch)
                    return batch
                if self._stop_at is not None:
                    return []
                self._changed.wait()

    def _pick(self) -> list[Item]:
        first = self._waiting[0]
        tasks = [task for task in self._waiting if task.key == first.key]
        backlog = sum(len(task.pending) for task in self._waiting)
        room = int(self.pipelines[first.recipe.bundle].max_batch_seconds / first.recipe.seconds)
        size = max(1, min(self._max_batch, math.ceil(backlog / (self._lanes or 1)), room))
        if first.varied:
            size = len(first.jobs)  # the pipeline cuts them to its memory
        batch: list[Item] = []
        # One sound of each in turn: a request for many does not starve the others.
        while len(batch) < size and tasks:
            task = tasks.pop(0)
            batch.append((task, task.pending.popleft()))
            if task.pending:
                tasks.append(task)
        self._waiting = deque(task for task in self._waiting if task.pending)
        if self._waiting and self._waiting[0] is first:
            self._waiting.rotate(-1)
        return batch

    def _make(self, batch: list[Item]) -> None:
        """Make the sounds of a batch and hand them out; errors go to the tasks."""
        import torch

        first = batch[0][0]
        recipe = first.recipe
        pipeline = self.pipelines[recipe.bundle]
        jobs = [task.jobs[item] for task, item in batch]
        # Holds for this thread alone.
        torch.set_num_threads(max(1, self._cores // max(1, len(self._batches))))

        def on_step(share: float, tokens: Tensor) -> None:
            if all(task.ended for task, _ in batch):
                raise _Abandoned
            for place, (task, item) in enumerate(batch):
                task.listener.on_progress(item, share)
                # The pipeline may make a batch in parts; then it is unknown whose tokens these are.
                whole = len(tokens) == len(batch) and not first.varied
                if whole and share < 1 and task.listener.wants_preview(item):
                    task.listener.on_preview(item, pipeline, tokens[place])

        try:
            make: Callable[..., list[Sound]]
            if first.varied:
                make = functools.partial(
                    pipeline.variations, jobs[0].prompt, len(jobs), seed=jobs[0].seed
                )
            else:
                make = functools.partial(pipeline.run_jobs, jobs, edit=first.edit(pipeline))
            sounds = make(
                duration=recipe.seconds,
                negative_prompt=recipe.negative_prompt,
                callback=on_step,
                **recipe.sampling,
            )
        except _Abandoned:
            self._metrics.stopped.inc(len({task for task, _ in batch}))
        except (DiffsoundError, ServiceError) as error:
            for task, _ in batch:
                task.fail(error)
        except Exception as error:
            if len(batch) > 1 and not first.varied:
                # One sound that cannot be made must not take its neighbours with it.
                for alone in batch:
                    self._make([alone])
                return
            log("generation failed", logging.ERROR, error)
            first.fail(error)
        else:
            for (task, item), sound in zip(batch, sounds, strict=True):
                self._metrics.sounds.inc()
                self._metrics.sound_seconds.inc(sound.duration)
                self._deliver(task, item, sound)

    def _deliver(self, task: Task, item: int, sound: Sound) -> None:
        try:
            task.deliver(item, sound)
        except Exception as error:
            # The choice among the candidates failed; the lane carries on.
            if not isinstance(error, DiffsoundError):
                log("choosing failed", logging.ERROR, error)
            task.fail(error)

    def _drop_ended(self) -> None:
        if any(task.ended for task in self._waiting):
            self._waiting = deque(task for task in self._waiting if not task.ended)

    def _retry_after(self) -> int:
        """Seconds until the backlog has likely shrunk by a request."""
        work = sum(task.recipe.seconds * len(task.pending) for task in self._waiting)
        seconds = work / len(self._waiting) * self._pace / (self._lanes or 1)
        return max(1, min(120, math.ceil(seconds)))
