"""Files appear whole or not at all."""

from pathlib import Path

import pytest

from diffsound.files import atomic_write, sha256


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
