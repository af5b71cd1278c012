"""Where work runs: in this process, a pool of processes, or on a Ray cluster.

An engine is an ordered map: results come in the order of the items, so the output does not depend
on the engine. Tasks are submitted with a bounded look-ahead, so that the tasks of millions of clips
are never all in memory.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from diffsound.errors import DataError, InputError, MissingExtraError

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

# Tasks waiting per worker: enough that none idles while an earlier result is collected.
_AHEAD = 3


class MapEngine(Protocol):
    """Runs a function over items; function and items must be picklable."""

    def map(
        self, function: Callable[[ItemT], ResultT], items: Iterable[ItemT]
    ) -> Iterator[ResultT]: ...


def make_engine(
    name: str = "processes", workers: int | None = None, address: str | None = None
) -> MapEngine:
    """An engine by name. workers: size of the pool (default: one process per core)."""
    workers = workers if workers is not None else available_cores()
    if workers < 1:
        raise InputError(f"workers must be at least 1, not {workers}")
    if address is not None and name != "ray":
        raise InputError("--address belongs to --engine ray")
    if name == "ray":
        return RayEngine(address, workers)
    if name == "serial" or (name == "processes" and workers == 1):
        return SerialEngine()
    if name == "processes":
        return ProcessEngine(workers)
    raise InputError(f"unknown engine '{name}'; known are: serial, processes, ray")


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class SerialEngine:
    """Everything in this process, item by item."""

    def map(
        self, function: Callable[[ItemT], ResultT], items: Iterable[ItemT]
    ) -> Iterator[ResultT]:
        yield from map(function, items)


class ProcessEngine:
    """A pool of processes on this machine."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def map(
        self, function: Callable[[ItemT], ResultT], items: Iterable[ItemT]
    ) -> Iterator[ResultT]:
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        from concurrent.futures.process import BrokenProcessPool

        # spawn: a process forked after torch has started threads can hang.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self.workers, mp_context=context) as pool:
            try:
                yield from _ordered(
                    items,
                    lambda item: pool.submit(function, item),
                    lambda future: future.result(),
                    self.workers * _AHEAD,
                )
            except BrokenProcessPool as error:
                raise DataError(
                    "a worker process ended unexpectedly (out of memory?); use fewer --workers "
                    "and run again, what is finished is kept"
                ) from error
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


class RayEngine:
    """A Ray cluster, or a local Ray when no address is given. Output folders must be shared."""

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        self.address = address
        self.workers = workers

    def map(
        self, function: Callable[[ItemT], ResultT], items: Iterable[ItemT]
    ) -> Iterator[ResultT]:
        try:
            import ray
        except ImportError as error:
            raise MissingExtraError("ray", "cluster") from error
        started = not ray.is_initialized()
        if started:
            try:
                ray.init(
                    address=self.address or "local",
                    num_cpus=None if self.address else self.workers,
                    include_dashboard=None if self.address else False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            except Exception as error:  # Ray raises plain Exception when a node does not come up
                message = " ".join(str(error).split())
                place = f"reach Ray at {self.address}" if self.address else "start Ray here"
                raise InputError(f"cannot {place}: {message}") from error
        try:
            shared = ray.put(function)
            task: Any = ray.remote(_call)
            ahead = max(1, int(ray.cluster_resources().get("CPU", 1))) * _AHEAD
            yield from _ordered(items, lambda item: task.remote(shared, item), _ray_result, ahead)
        finally:
            if started:
                ray.shutdown()


def _call(function: Callable[[ItemT], ResultT], item: ItemT) -> ResultT:
    return function(item)


def _ray_result(reference: Any) -> Any:
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        # Ray wraps the task's error in its own traceback; the caller wants the plain error.
        cause = error.cause
        raise cause if isinstance(cause, Exception) else error from None


def _ordered(
    items: Iterable[ItemT],
    submit: Callable[[ItemT], Any],
    collect: Callable[[Any], ResultT],
    ahead: int,
) -> Iterator[ResultT]:
    """Results in the order of the items, with at most `ahead` tasks pending."""
    pending: deque[Any] = deque()
    for item in items:
        pending.append(submit(item))
        if len(pending) >= ahead:
            yield collect(pending.popleft())
    while pending:
        yield collect(pending.popleft())
