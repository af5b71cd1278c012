"""One request as work: the sounds it wants, who listens to its progress, how it ends."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from diffsound.errors import DiffsoundError

if TYPE_CHECKING:
    from torch import Tensor

    from diffsound.editing import Edit
    from diffsound.jobs import Job
    from diffsound.pipeline import TextToSound
    from diffsound.sound import Sound


# All sounds of a task in, those to hand out back, best first.
Choose = Callable[["list[Sound]"], "list[Sound]"]


class ServiceError(Exception):
    """Not the caller's mistake, but an answer with a status of its own."""

    status = 503


class QueueFullError(ServiceError):
    """Too many requests wait already."""

    status = 429

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"too many requests are waiting; try again in {retry_after} s")
        self.retry_after = retry_after


class NotReadyError(ServiceError):
    """The model is still being loaded, or the server is going down."""


class TimedOutError(ServiceError):
    """The request ran out of time."""


class CancelledError(ServiceError):
    """The caller went away or took the request back."""

    status = 499  # as nginx has it: the client closed the request


class NotFoundError(ServiceError):
    """No such sound, job or bundle (any more)."""

    status = 404


def public_message(error: BaseException) -> str:
    """What a caller is told: our own errors' line, and nothing of what went wrong inside."""
    if isinstance(error, DiffsoundError | ServiceError):
        return " ".join(str(error).split())
    return "something went wrong inside the server; its log has the details"


@dataclass(frozen=True)
class Recipe:
    """All that sounds must share to be made in one call of the model.

    seconds: the length of each sound. sampling: by the pipeline's names.
    """

    bundle: str
    seconds: float
    negative_prompt: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Hashable:
        return self.bundle, self.seconds, self.negative_prompt, tuple(sorted(self.sampling.items()))


class Listener:
    """Hears how a task goes, from the threads that do the work. This one does not care."""

    def wants_preview(self, item: int) -> bool:
        """Whether a picture of the unfinished sound is worth its cost now."""
        return False

    def on_progress(self, item: int, share: float) -> None:
        """A step of sound `item` is done; share goes from 0 to 1."""

    def on_preview(self, item: int, pipeline: TextToSound, tokens: Tensor) -> None:
        """The unfinished tokens [F', L'] of sound `item`."""

    def on_sound(self, item: int, sound: Sound) -> None:
        """Sound `item` is finished (or, of chosen ones, the `item`-th best is known)."""


class Task:
    """The sounds of one request. Made by the server's loop, filled by the lanes."""

    def __init__(
        self,
        recipe: Recipe,
        jobs: Sequence[Job],
        *,
        timeout: float,
        make_edit: Callable[[TextToSound], Edit] | None = None,
        choose: Choose | None = None,
        listener: Listener | None = None,
    ) -> None:
        self.recipe = recipe
        self.jobs = tuple(jobs)
        self.deadline = time.monotonic() + timeout
        self.listener = listener or Listener()
        self.pending = deque(range(len(self.jobs)))
        self.result: Future[list[Sound]] = Future()
        self._make_edit = make_edit
        self._edit: Edit | None = None
        self._choose = choose
        self._sounds: dict[int, Sound] = {}
        self._lock = threading.Lock()

    @property
    def key(self) -> Hashable:
        """Tasks of equal keys can run together; an edit runs alone, its clip is its own."""
        return self.recipe.key if self._make_edit is None else id(self)

    @property
    def started(self) -> bool:
        return len(self.pending) < len(self.jobs)

    @property
    def ended(self) -> bool:
        """Finished, failed, cancelled or out of time: no more work is to be done for it."""
        if not self.result.done() and time.monotonic() > self.deadline:
            self.fail(TimedOutError("this took too long; ask for less, or try again later"))
        return self.result.done()

    def edit(self, pipeline: TextToSound) -> Edit | None:
        """The edit, prepared once for all candidates; None for a plain generation."""
        if self._make_edit is None:
            return None
        with self._lock:
            if self._edit is None:
                self._edit = self._make_edit(pipeline)
            return self._edit

    def deliver(self, item: int, sound: Sound) -> None:
        """One sound is finished; the last one completes the task.

        When sounds are chosen among, the listener hears of the chosen ones alone, at the end.
        """
        if self.ended:
            return
        if self._choose is None:
            self.listener.on_sound(item, sound)
        with self._lock:
            self._sounds[item] = sound
            complete = len(self._sounds) == len(self.jobs)
        if complete:
            self._complete([self._sounds[i] for i in range(len(self.jobs))])

    def _complete(self, sounds: list[Sound]) -> None:
        if self._choose is not None:
            sounds = self._choose(sounds)
            for place, sound in enumerate(sounds):
                self.listener.on_sound(place, sound)
        with self._lock:
            if not self.result.done():
                self.result.set_result(sounds)

    def fail(self, error: Exception) -> None:
        """End the task; what comes later is ignored."""
        with self._lock:
            if not self.result.done():
                self.result.set_exception(error)

    def cancel(self) -> None:
        """Take the request back: a lane that works for nobody else stops at its next step."""
        self.fail(CancelledError("cancelled"))
