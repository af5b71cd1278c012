"""One live process per run folder."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from diffsound.errors import InputError


@contextmanager
def run_lock(run: Path) -> Iterator[None]:
    """Hold the run folder for this process; refuse with who holds it otherwise.

    The kernel drops the lock when its holder dies, however it dies, so a killed run never leaves
    a folder that must be unlocked by hand.
    """
    with (run / "run.lock").open("a+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            stream.seek(0)
            holder = stream.read().strip() or "another process"
            raise InputError(
                f"the run folder {run} is in use by {holder}; stop it or choose another --run"
            ) from error
        stream.seek(0)
        stream.truncate()
        stream.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        stream.flush()
        yield
        stream.seek(0)
        stream.truncate()
