"""Files appear whole or not at all, and only regular files are read."""

import itertools
import os
import stat
from collections import Counter
from pathlib import Path

import pytest

from crash_support import Plan, kill_at_change
from diffsound.files import (
    REPLACING,
    atomic_files,
    atomic_write,
    open_regular,
    read_text,
    settle,
    sha256,
)


def test_replaces_on_success(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with atomic_write(target) as temporary:
        assert temporary.suffix == ".txt"
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")

    def fail() -> None:
        with atomic_write(target) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_sha256(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    assert sha256(tmp_path / "x").startswith("ba7816bf8f01cfea414140de5dae2223")


def test_the_new_name_is_put_on_the_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(handle).st_mode), (tmp_path / "a.txt").exists()))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with atomic_write(tmp_path / "a.txt") as temporary:
        temporary.write_text("new")
    assert synced == [(False, False), (True, True)]


@pytest.mark.parametrize("name", ["pipe", "folder", "device"])
def test_only_regular_files_are_opened(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/zero")
    for read in (open_regular, read_text, sha256):
        with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
            read(tmp_path / name)


def test_a_text_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("é" * 4)
    assert read_text(path, limit=8) == "éééé"
    with pytest.raises(OSError, match="more than"):
        read_text(path, limit=7)


def test_files_are_replaced_together_whenever_the_writer_is_killed(tmp_path: Path) -> None:
    """Killed before each change of the folder in turn, until none is left: all old, or all new."""
    names = ("a", "b", "part/c")
    seen = set()
    for change in itertools.count(1):
        folder = tmp_path / str(change)
        (folder / "part").mkdir(parents=True)
        for name in names:
            (folder / name).write_text("old")
        child = os.fork()
        if child == 0:
            kill_at_change(Plan(str(folder), kill_at_change=change), Counter())
            with atomic_files(folder) as new:
                (new / "part").mkdir()
                for name in names:
                    (new / name).write_text("new")
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        settle(folder)
        assert not (folder / REPLACING).exists()
        (content,) = {(folder / name).read_text() for name in names}
        seen.add(content)
        if not os.WIFSIGNALED(status):
            break
    assert change > 12
    assert seen == {"old", "new"}


def test_settling_writes_nothing_through_a_link(tmp_path: Path) -> None:
    folder, outside = tmp_path / "bundle", tmp_path / "outside"
    (folder / REPLACING / "part").mkdir(parents=True)
    outside.mkdir()
    (folder / "part").symlink_to(outside)
    (folder / REPLACING / "part" / "x").write_text("hostile")
    with pytest.raises(OSError, match="goes through a link"):
        settle(folder)
    assert list(outside.iterdir()) == []
