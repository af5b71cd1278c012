"""Several sounds at once in one process, a core each.

On a CPU a step's matrix products are small: one core each is faster than all cores on each. The
lanes share one copy of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Event
from typing import TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class Lanes:
    """Threads that run a function over items; results come as they are ready."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.stopped = Event()

    def map(
        self, function: Callable[[ItemT], ResultT], items: Iterable[ItemT]
    ) -> Iterator[ResultT]:
        """Ctrl-C (or leaving early) sets `stopped`, for the function to heed, and waits for it."""
        import torch

        cores = torch.get_num_threads()
        threads = max(1, cores // self.count)

        def open_lane() -> None:
            torch.set_num_threads(threads)  # of this lane alone

        with ThreadPoolExecutor(self.count, "diffsound-lane", open_lane) as pool:
            futures = [pool.submit(function, item) for item in items]
            # A thread that is started later, by whomever, takes after the last one set.
            torch.set_num_threads(cores)
            try:
                for future in as_completed(futures):
                    yield future.result()
            except BaseException:
                self.stopped.set()
                pool.shutdown(cancel_futures=True)
                raise
