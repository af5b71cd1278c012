"""One request as work: the sounds it wants, who listens to its progress, how it ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from diffsound.serving.errors import CancelledError, TimedOutError

if TYPE_CHECKING:
    from torch import Tensor

    from diffsound.generation.edits import Edit
    from diffsound.generation.jobs import Job
    from diffsound.generation.pipeline import TextToSound
    from diffsound.generation.sound import Sound


# Takes all sounds of a task, returns those to hand out, best first.
Choose = Callable[["list[Sound]"], "list[Sound]"]


@dataclass(frozen=True)
class Recipe:
    """What sounds must share to be made in one call of the model.

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
    """Is told about a task's progress by the threads that do the work. This one ignores it."""

    def wants_preview(self, item: int) -> bool:
        """Whether a picture of the unfinished sound is worth its cost now."""
        return False

    def on_progress(self, item: int, share: float) -> None:
        """A step of sound `item` is done; share goes from 0 to 1."""

    def on_preview(self, item: int, pipeline: TextToSound, tokens: Tensor) -> None:
        """The unfinished tokens [F', L'] of sound `item`."""

    def on_sound(self, item: int, sound: Sound) -> None:
        """Sound `item` is finished (or, of chosen ones, the `item`-th best is known)."""


def on_loop(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *given: Any) -> None:
    """Call a function on the server's loop, from any thread; not on one that has ended."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(call, *given)


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
        varied: bool = False,
    ) -> None:
        """varied: the sounds are variations of the first one, made in one call."""
        self.recipe = recipe
        self.varied = varied
        self.jobs = tuple(jobs)
        self.deadline = time.monotonic() + timeout
        self.listener = listener or Listener()
        self.pending = deque(range(len(self.jobs)))
        self.result: Future[list[Sound]] = Future()
        self._is_edit = make_edit is not None
        self._make_edit = make_edit
        self._edit: Edit | None = None
        self._choose = choose
        self._sounds: dict[int, Sound] = {}
        self._lock = threading.Lock()

    @property
    def key(self) -> Hashable:
        """Tasks of equal keys can run together; an edit runs alone, its clip is its own.

        So do variations: the first of them is the clip of the others.
        """
        return id(self) if self._is_edit or self.varied else self.recipe.key

    @property
    def started(self) -> bool:
        return len(self.pending) < len(self.jobs)

    @property
    def ended(self) -> bool:
        """Finished, failed, cancelled or out of time: nothing is left to do."""
        if not self.result.done() and time.monotonic() > self.deadline:
            self.fail(TimedOutError("this took too long; ask for less or try again later"))
        return self.result.done()

    def edit(self, pipeline: TextToSound) -> Edit | None:
        """The edit, prepared once for all candidates; None for a plain generation."""
        if not self._is_edit:
            return None
        with self._lock:
            if self._make_edit is None:
                raise CancelledError("cancelled")
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
            if self.result.done():
                return
            self._sounds[item] = sound
            if len(self._sounds) < len(self.jobs):
                return
            sounds = [self._sounds[i] for i in range(len(self.jobs))]
        self._complete(sounds)

    def _complete(self, sounds: list[Sound]) -> None:
        if self._choose is not None:
            sounds = self._choose(sounds)
            for place, sound in enumerate(sounds):
                self.listener.on_sound(place, sound)
        with self._lock:
            if not self.result.done():
                self.result.set_result(sounds)
            self._release()

    def fail(self, error: Exception) -> None:
        """End the task; what comes later is ignored."""
        with self._lock:
            if not self.result.done():
                self.result.set_exception(error)
            self._release()

    def _release(self) -> None:
        """Release the sounds and the clip: references to an ended task may live on for a while."""
        self._sounds.clear()
        self._make_edit = self._edit = None

    def cancel(self) -> None:
        """Cancel the request: a lane that works for no other stops at its next step."""
        self.fail(CancelledError("cancelled"))
