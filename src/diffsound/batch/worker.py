"""A lane's own process: does the work that arrives on standard input, until that closes.

Messages are pickles from our own parent process: first the work and its number of threads, then one
item after another. Each is answered by (result, None) or (None, error) on standard output.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from types import FrameType
from typing import Any, BinaryIO


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches us too; our parent decides
    signal.signal(signal.SIGTERM, _leave)
    source = sys.stdin.buffer
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # library output must not mix with the answers
        serve(source, answers)


def serve(source: BinaryIO, answers: BinaryIO) -> None:
    """Answer every message until the source closes, which it does when the parent exits."""
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
