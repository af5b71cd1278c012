"""Lanes: real worker processes beside this one, their results, failures and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from diffsound.batch.lanes import Lanes, Worker
from diffsound.errors import DiffsoundError, InputError


def never() -> bool:
    return False


@dataclass(frozen=True)
class Square:
    """Says who squared what, with how many threads; waits in this process for the other lane."""

    folder: str
    here: int

    def prepare(self) -> None:
        (Path(self.folder) / f"ready-{os.getpid()}").touch()

    def __call__(self, item: int, stopped: Callable[[], bool] = never) -> tuple[int, int, int]:
        print("printed by a library")  # must not disturb the answers
        if os.getpid() == self.here:
            self._wait(lambda: len(list(Path(self.folder).glob("done-*"))) >= 3)
        else:
            (Path(self.folder) / f"done-{item}").touch()
        return item * item, os.getpid(), torch.get_num_threads()

    @staticmethod
    def _wait(until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 100
        while not until():
            assert time.monotonic() < deadline
            time.sleep(0.01)


@dataclass(frozen=True)
class Fail:
    """Fails in a worker; in this process it goes on until it is stopped."""

    here: int
    how: str = "refuse"

    def prepare(self) -> None: ...

    def __call__(self, item: int, stopped: Callable[[], bool] = never) -> None:
        if os.getpid() == self.here:
            Square._wait(stopped)
        elif self.how == "refuse":
            raise InputError("no such sound")
        else:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(autouse=True)
def work_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers unpickle the classes above by the name of this module."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


def test_every_result_comes_once_and_both_processes_take_part(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        results = list(Lanes(2).map(Square(str(tmp_path), os.getpid()), range(6)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert sorted(square for square, _, _ in results) == [0, 1, 4, 9, 16, 25]
    assert len({pid for _, pid, _ in results}) == 2
    assert {threads for _, _, threads in results} == {1}
    assert len(list(tmp_path.glob("ready-*"))) == 2


def test_one_item_and_none_need_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "__init__", lambda self: pytest.fail("a process was started"))
    for name in "abc":
        (tmp_path / f"done-{name}").touch()
    work = Square(str(tmp_path), os.getpid())
    assert [square for square, _, _ in Lanes(4).map(work, [3])] == [9]
    assert list(Lanes(4).map(work, [])) == []


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("refuse", InputError, "no such sound"),
        ("die", DiffsoundError, "a worker process ended unexpectedly"),
    ],
)
def test_a_failure_in_one_lane_stops_the_other(
    how: str, error: type[Exception], message: str
) -> None:
    lanes = Lanes(2)
    with pytest.raises(error, match=message):
        list(lanes.map(Fail(os.getpid(), how), range(4)))
    assert lanes.stopped.is_set()


def test_a_worker_ends_with_its_parent() -> None:
    code = (
        "import os, signal, time; from diffsound.batch.lanes import Worker; worker = Worker();"
        "print(worker._process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    deadline = time.monotonic() + 60
    while _alive(pid):
        assert time.monotonic() < deadline, "the worker outlived its parent"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
