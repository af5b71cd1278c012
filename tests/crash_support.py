"""Commands that are killed or meet failing disks, at a place chosen beforehand.

A fork server (this file, run as a program) has imported everything; each command runs in a fork of
it, so that a kill costs the work that was done and not the seconds in which torch is loaded.
"""

from __future__ import annotations

import builtins
import errno
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# What changes a folder; Python announces each before it happens.
CHANGES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate")
# Loaded before the first fork: what commands would otherwise load each time.
PRELOADED = (
    "PIL.Image", "torch._dynamo", "diffsound.batch.run", "diffsound.data.prepare",
    "diffsound.generation.pipeline", "diffsound.serving.run",
    *(f"diffsound.cli.{verb}" for verb in ("batch", "bundle", "data", "serve", "train")),
    *(f"diffsound.training.{stage}" for stage in
      ("assemble", "codec", "decoder", "judges", "matcher", "vocoder")),
)  # fmt: skip
ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO}


@dataclass(frozen=True)
class Plan:
    """What goes wrong in a command, by number of change, seconds, or number of operation.

    watched: the folder whose files count.
    """

    watched: str
    kill_at_change: int | None = None
    kill_after: float | None = None
    fault: str | None = None  # one of ERRORS, or "short" for reads that give half
    operation: str = ""  # write, fsync, create, rename or read
    number: int = 0


@dataclass(frozen=True)
class Ending:
    """How a command ended. code: its exit code, or minus the signal."""

    code: int
    seconds: float
    output: str
    counts: dict[str, int]

    @property
    def was_killed(self) -> bool:
        return self.code == -signal.SIGKILL


class ForkServer:
    """Runs commands in forks of a process that has everything imported."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "SOURCE_DATE_EPOCH": "0",
                 "TMPDIR": str(scratch)},
        )  # fmt: skip

    def start(self, arguments: list[str], plan: Plan) -> int:
        """Start a command line of diffsound; returns its process id."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"arguments": arguments, "plan": asdict(plan), "scratch": str(self.scratch)}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def wait(self) -> Ending:
        assert self._process.stdout is not None
        return Ending(**json.loads(self._process.stdout.readline()))

    def run(self, arguments: list[str], plan: Plan) -> Ending:
        """Run a command line of diffsound to its end, however it comes."""
        started = self.start(arguments, plan)
        if plan.kill_after is None:
            return self.wait()
        # The fork server has not waited for it yet, so its number cannot belong to another.
        late = threading.Timer(plan.kill_after, os.kill, (started, signal.SIGKILL))
        late.start()
        try:
            return self.wait()
        finally:
            late.cancel()

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait(60)


class Faults:
    """A shim under everything that opens, reads, writes, syncs or renames files in Python.

    Fails the chosen operation of its kind on the watched folder; a full disk stays full. It also
    counts them, so that a run without a fault says how many places there are.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.counts: Counter[str] = Counter()
        self.full = False
        self._open = io.open

    def install(self) -> None:
        faults = self

        def before(kind: str, call: Callable[..., Any], where: int = 0) -> Callable[..., Any]:
            def shim(*arguments: Any, **named: Any) -> Any:
                if faults.watches(arguments[where]):
                    faults.check(kind)
                return call(*arguments, **named)

            return shim

        opened = os.open

        def os_open(path: Any, flags: int, *more: Any, **named: Any) -> int:
            if flags & os.O_CREAT and faults.watches(path):
                faults.check("create")
            return opened(path, flags, *more, **named)

        os.open = os_open
        os.fsync = before("fsync", os.fsync)
        os.rename, os.replace = before("rename", os.rename), before("rename", os.replace)
        os.mkdir = before("create", os.mkdir)
        io.open = builtins.open = tarfile.bltn_open = self.open  # type: ignore[attr-defined]

    def watches(self, place: Any) -> bool:
        """Whether a path or an open file is below the watched folder."""
        if isinstance(place, int):
            try:
                place = os.readlink(f"/proc/self/fd/{place}")
            except OSError:
                return False
        return os.path.abspath(os.fsdecode(place)).startswith(self.plan.watched)

    def check(self, kind: str) -> None:
        """Count an operation; raise if it is the one that fails."""
        self.counts[kind] += 1
        plan = self.plan
        if plan.fault not in ERRORS:
            return
        hit = kind == plan.operation and self.counts[kind] == plan.number
        if hit or (self.full and kind in ("write", "create")):
            self.full = self.full or plan.fault == "ENOSPC"
            code = ERRORS[plan.fault]
            raise OSError(code, os.strerror(code))

    def open(self, file: Any, mode: str = "r", buffering: int = -1, encoding: str | None = None,
             errors: str | None = None, newline: str | None = None, closefd: bool = True,
             opener: Any = None) -> Any:  # fmt: skip
        if not self.watches(file):
            return self._open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        if not isinstance(file, int) and set(mode) & set("wax"):
            self.check("create")
        raw = FaultyFile(self, file, mode.replace("b", "").replace("t", ""), closefd, opener)
        if buffering == 0:
            return raw
        kind: Any = io.BufferedReader if "r" in mode else io.BufferedWriter
        buffer = io.BufferedRandom(raw) if "+" in mode else kind(raw)
        return buffer if "b" in mode else io.TextIOWrapper(buffer, encoding, errors, newline)


class FaultyFile(io.FileIO):
    """A file whose reads and writes go through the shim."""

    def __init__(self, faults: Faults, file: Any, mode: str, closefd: bool, opener: Any) -> None:
        super().__init__(file, mode, closefd, opener)
        self._faults = faults

    def write(self, data: Any) -> int:
        try:
            self._faults.check("write")
        except OSError:
            super().write(bytes(data)[: len(bytes(data)) // 2])  # a disk fills in the middle
            raise
        return super().write(data)

    def readinto(self, buffer: Any) -> int | None:
        self._faults.check("read")
        view = memoryview(buffer).cast("B")
        return super().readinto(view[: self._share(len(view))])

    def read(self, size: int | None = -1) -> bytes | None:
        if size is None or size < 0:
            return self.readall()
        self._faults.check("read")
        return super().read(self._share(size))

    def readall(self) -> bytes:
        parts = []
        while part := self.read(65536):
            parts.append(part)
        return b"".join(parts)

    def _share(self, size: int) -> int:
        return max(1, size // 2) if self._faults.plan.fault == "short" and size else size


def kill_at_change(plan: Plan, counts: Counter[str]) -> None:
    """End this process like a power cut, just before the chosen change of the watched folder."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in CHANGES or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        if os.path.abspath(os.fsdecode(arguments[0])).startswith(plan.watched):
            counts["change"] += 1
            if counts["change"] == plan.kill_at_change:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def perform(arguments: list[str], plan: Plan, counted: Path) -> None:
    """In a fork: run the command with the plan in place, and note what was counted."""
    from diffsound.cli.main import run

    faults = Faults(plan)
    kill_at_change(plan, faults.counts)
    faults.install()
    try:
        run(arguments)
    finally:
        counted.write_text(json.dumps(faults.counts))


def serve() -> None:
    """Read orders from standard input and answer each on standard output, until it ends."""
    for name in PRELOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        order = json.loads(line)
        plan, scratch = Plan(**order["plan"]), Path(order["scratch"])
        counted, said = scratch / "counts", scratch / "output"
        counted.unlink(missing_ok=True)
        start = time.monotonic()
        child = os.fork()
        if child == 0:
            os.setsid()
            out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1)
            os.dup2(out, 2)
            code = 70
            try:
                perform(order["arguments"], plan, counted)
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        answer = {
            "code": os.waitstatus_to_exitcode(status),
            "seconds": time.monotonic() - start,
            "output": said.read_text(encoding="utf-8", errors="replace"),
            "counts": json.loads(counted.read_text()) if counted.exists() else {},
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
