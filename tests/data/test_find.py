import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from diffsound.data.clip import read_location
from diffsound.data.tables import AudioFinder, SourceReport, inside, tar_audio, walk_audio
from diffsound.errors import DataError


@pytest.fixture
def report() -> SourceReport:
    return SourceReport()


def names(root: Path, report: SourceReport) -> list[str]:
    return [
        location.member or str(Path(location.path).relative_to(root))
        for location in walk_audio(root, report)
    ]


def add(tar: tarfile.TarFile, name: str, content: bytes = b"x", **fields: object) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    tar.addfile(info, io.BytesIO(content))


def test_files_are_sorted_by_name(tmp_path: Path, report: SourceReport) -> None:
    for name in ("b/2.FLAC", "b/1.ogg", "a.wav", "notes.txt", "b/cover.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert names(tmp_path, report) == ["a.wav", "b/1.ogg", "b/2.FLAC"]
    assert report.skipped == []


def test_unsupported_formats_are_reported(tmp_path: Path, report: SourceReport) -> None:
    (tmp_path / "voice.m4a").touch()
    assert names(tmp_path, report) == []
    assert report.skipped == [("voice.m4a", ".m4a files cannot be read; convert them")]


def test_a_loop_of_links_ends(tmp_path: Path, report: SourceReport) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.wav").touch()
    (tmp_path / "sub" / "again").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "gone.wav").symlink_to(tmp_path / "nowhere.wav")
    assert names(tmp_path, report) == ["sub/a.wav"]
    assert any("circular link" in note for note in report.notes)
    assert any("broken link" in note for note in report.notes)


def test_tar_members_outside_the_tar_are_skipped(tmp_path: Path, report: SourceReport) -> None:
    with tarfile.open(tmp_path / "clips.tar", "w") as tar:
        add(tar, "../../evil.wav")
        add(tar, "/etc/evil.wav")
        add(tar, "good/a.wav", b"abc")
        add(tar, "link.wav", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd")
        add(tar, "notes.txt")
    (found,) = walk_audio(tmp_path, report)
    assert found.member == "good/a.wav"
    assert found.span is not None
    offset, size = found.span
    assert (tmp_path / "clips.tar").read_bytes()[offset : offset + size] == b"abc"
    assert [reason for _, reason in report.skipped] == [
        "its name points outside the tar",
        "its name points outside the tar",
        "not a regular file in the tar",
    ]


def test_a_cut_tar_gives_what_came_before_the_cut(tmp_path: Path, report: SourceReport) -> None:
    with tarfile.open(tmp_path / "clips.tar", "w") as tar:
        for i in range(4):
            add(tar, f"{i}.wav", bytes(2000))
    content = (tmp_path / "clips.tar").read_bytes()
    (tmp_path / "clips.tar").write_bytes(content[:6000])
    found = [location.member for location in walk_audio(tmp_path, report)]
    assert found[:2] == ["0.wav", "1.wav"]
    assert len(found) < 4
    assert "damaged or compressed" in report.notes[0]


def test_a_compressed_tar_is_reported(tmp_path: Path, report: SourceReport) -> None:
    with tarfile.open(tmp_path / "clips.tar", "w:gz") as tar:
        add(tar, "a.wav")
    assert list(tar_audio(tmp_path / "clips.tar", report)) == []
    assert "damaged or compressed" in report.notes[0]


def test_audio_is_read_from_a_tar(
    tmp_path: Path, report: SourceReport, write_sound: Callable[..., Path]
) -> None:
    path = write_sound(tmp_path / "a.wav", seed=5)
    with tarfile.open(tmp_path / "clips.tar", "w") as tar:
        add(tar, "other.wav", bytes(700))
        tar.add(path, "deep/a-in-tar.wav")
    finder = AudioFinder(tmp_path, report)
    plain, packed = finder.find(["a"]), finder.find(["nothing", "a-in-tar"])
    assert plain is not None
    assert packed is not None
    assert (read_location(plain, 8000) == read_location(packed, 8000)).all()
    assert finder.find(["b"]) is None


def test_a_repeated_name_is_noted(tmp_path: Path, report: SourceReport) -> None:
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.wav").touch()
    finder = AudioFinder(tmp_path, report)
    found = finder.find(["x"])
    assert found is not None
    assert found.path.endswith("a/x.wav")
    assert "'x' exists twice" in report.notes[0]


def test_names_outside_the_root_are_refused() -> None:
    root = Path("/data")
    assert inside(root, "a/b.wav") == root / "a/b.wav"
    for name in ("../b.wav", "a/../../b.wav", "/etc/passwd", "..\\b.wav", "", "a\0b"):
        assert inside(root, name) is None


def test_a_missing_folder_is_refused(tmp_path: Path, report: SourceReport) -> None:
    with pytest.raises(DataError, match="is not a folder"):
        list(walk_audio(tmp_path / "nowhere", report))
