"""Several sounds at once on one machine: a lane per core, the first in this process.

On a CPU a step's matrix products are small: one core each is faster than all cores on each. Every
further lane is a separate process (`serve`): two lanes in one process would wait for each
other's Python code between the products. A lane gets work only once its process is ready, so a
short list is finished without waiting for a second model to load.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Event, Thread
from types import FrameType
from typing import Any, BinaryIO, Generic, Protocol, TypeVar

from diffsound.errors import DiffsoundError

ItemT = TypeVar("ItemT")
ItemT_contra = TypeVar("ItemT_contra", contravariant=True)
ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)

WORKER = (sys.executable, "-m", "diffsound.batch.lanes")
_PATIENCE = 30.0  # seconds for a worker that was asked to end


class Work(Protocol[ItemT_contra, ResultT_co]):
    """What lanes do with each item. The work, its items and its results must be picklable."""

    def prepare(self) -> None:
        """Load what every item needs, once in each process."""
        ...

    def __call__(self, item: ItemT_contra, /, stopped: Callable[[], bool] = ...) -> ResultT_co: ...


class Lanes:
    """Runs work over items in `count` lanes; results come as they are ready."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.stopped = Event()

    def map(self, work: Work[ItemT, ResultT], items: Iterable[ItemT]) -> Iterator[ResultT]:
        """Ctrl-C, a failure or leaving early sets `stopped`, ends the workers and waits for all."""
        import torch

        from diffsound.threads import torch_threads

        run: _Run[ItemT, ResultT] = _Run(items, self.stopped)
        count = min(self.count, run.total)
        if not count:
            return
        cores = torch.get_num_threads()
        share = max(1, cores // count)
        work.prepare()

        def own_lane() -> None:
            with torch_threads(share):
                run.drain(lambda item: work(item, self.stopped.is_set))

        workers = [Worker() for _ in range(count - 1)]

        def further_lane(worker: Worker) -> Callable[[], None]:
            def lane() -> None:
                worker.send((work, share))
                run.drain(worker)

            return lane

        threads = [
            Thread(target=run.guarded(lane), name="diffsound-lane", daemon=True)
            for lane in (own_lane, *map(further_lane, workers))
        ]
        try:
            for thread in threads:
                thread.start()
            torch.set_num_threads(cores)  # a new thread inherits the last value set
            for _ in range(run.total):
                yield run.next_result()
        finally:
            self.stopped.set()
            for worker in workers:
                worker.end()
            for thread in threads:
                thread.join()
            torch.set_num_threads(cores)


class _Run(Generic[ItemT, ResultT]):
    """The items still to do and the results so far, shared by the lanes."""

    def __init__(self, items: Iterable[ItemT], stopped: Event) -> None:
        self.stopped = stopped
        self._todo: SimpleQueue[ItemT] = SimpleQueue()
        self._done: SimpleQueue[tuple[ResultT | None, BaseException | None]] = SimpleQueue()
        self.total = 0
        for item in items:
            self._todo.put(item)
            self.total += 1

    def drain(self, function: Callable[[ItemT], ResultT]) -> None:
        """Process items until none is left or the lanes are stopped."""
        while not self.stopped.is_set():
            try:
                item = self._todo.get_nowait()
            except Empty:
                return
            self._done.put((function(item), None))

    def guarded(self, lane: Callable[[], None]) -> Callable[[], None]:
        """A lane; if it fails, the next result raises its error."""

        def run() -> None:
            try:
                lane()
            except BaseException as error:
                self._done.put((None, error))

        return run

    def next_result(self) -> ResultT:
        result, error = self._done.get()
        if error is not None:
            raise error
        return result  # type: ignore[return-value]


class Worker:
    """A worker process; called with an item, it returns the result."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(self, message: Any) -> Any:
        """Send a message and wait for its answer; an error in the worker is raised here."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump(message, self._process.stdin)
            self._process.stdin.flush()
            result, error = pickle.load(self._process.stdout)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError) as lost:
            raise DiffsoundError(
                "a worker process ended unexpectedly (out of memory?); use fewer --workers and "
                "run again: what is finished is kept"
            ) from lost
        if error is not None:
            raise error
        return result

    __call__ = send

    def end(self) -> None:
        """Stop it, even in the middle of an item; returns when it has exited."""
        self._process.terminate()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # a message it never read
                    pipe.close()


def main() -> None:
    """A lane's own process: does the work that arrives on standard input, until that closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches us too; our parent decides
    signal.signal(signal.SIGTERM, _leave)
    source = sys.stdin.buffer
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # library output must not mix with the answers
        serve(source, answers)


def serve(source: BinaryIO, answers: BinaryIO) -> None:
    """Answer every message until the source closes, which it does when the parent exits.

    Messages are pickles from our own parent process: first the work and its number of threads, then
    one item after another. Each is answered by (result, None) or (None, error).
    """
    import torch

    try:
        work, threads = pickle.load(source)
    except EOFError:
        return
    torch.set_num_threads(threads)
    answer(answers, work.prepare)
    while True:
        try:
            item = pickle.load(source)
        except EOFError:
            return
        answer(answers, lambda item=item: work(item))


def answer(answers: BinaryIO, do: Any) -> None:
    """Send what `do` returns, or the error it raises."""
    try:
        reply: tuple[Any, Exception | None] = (do(), None)
    except Exception as error:
        reply = (None, error)
    pickle.dump(reply, answers)
    answers.flush()


def _leave(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)  # past the clean-up of a file that is being written


if __name__ == "__main__":
    main()
