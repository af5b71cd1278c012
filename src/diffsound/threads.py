"""How many cores torch uses, where that changes the result.

A product of a few rows is cut differently for different numbers of threads, and then rounds
differently; one flipped bit can flip a token. The few small products of a generation therefore
always run on one thread, so that a seed gives the same sound with any number of cores, alone and
beside others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch's operations of the calling thread, and of no other, use `count` cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
