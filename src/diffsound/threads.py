"""How many cores torch uses, where that changes the result.

A product of a few rows is cut differently for different numbers of threads, and then rounds
differently; one flipped bit can flip a token. The few small products of a generation therefore
always run on one thread, so that a seed gives the same sound with any number of cores, alone and
beside others. Sums of a thousand products and more are cut as well, where the processor has
AVX-512: in int8 there is none of them (`backends.py`); in float32 the last layer of a block is one,
and a token may differ with the number of cores, though very rarely (none in 30 sounds on one and
two).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

PartT = TypeVar("PartT")
MadeT = TypeVar("MadeT")


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch's operations of the calling thread, and of no other, use `count` cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_core_each(work: Callable[[PartT], MadeT], parts: Sequence[PartT]) -> list[MadeT]:
    """`work` on every part, each on one core, as many at a time as this thread may use.

    What a part becomes depends neither on the number of cores nor on the other parts.
    """

    def alone(part: PartT) -> MadeT:
        with torch.inference_mode(), torch_threads(1):
            return work(part)

    cores = min(torch.get_num_threads(), len(parts))
    if cores < 2:
        return [alone(part) for part in parts]
    with ThreadPoolExecutor(cores) as pool:
        return list(pool.map(alone, parts))
