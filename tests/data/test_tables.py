import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from diffsound.data.clip import read_location
from diffsound.data.tables import (
    AudioFinder,
    SourceReport,
    inside,
    read_csv,
    read_jsonl,
    read_text,
    split_list,
    tar_audio,
    walk_audio,
)
from diffsound.errors import DataError


@pytest.fixture
def report() -> SourceReport:
    return SourceReport()


def table(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "table.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_quotes_hold_commas_and_line_breaks(tmp_path: Path, report: SourceReport) -> None:
    path = table(tmp_path, 'id,caption\n1,"a dog, far away,\nbarks ""woof"""\n\n2, plain \n')
    rows = list(read_csv(path, ("id", "caption"), report))
    assert rows == [
        {"id": "1", "caption": 'a dog, far away,\nbarks "woof"'},
        {"id": "2", "caption": "plain"},
    ]
    assert report.notes == []


def test_a_missing_column_is_named(tmp_path: Path, report: SourceReport) -> None:
    with pytest.raises(DataError, match=r"no column 'caption'; it has: id, text"):
        list(read_csv(table(tmp_path, "id,text\n1,x\n"), ("id", "caption"), report))
    with pytest.raises(DataError, match="no column 'id'; it has: no header"):
        list(read_csv(table(tmp_path, ""), ("id",), report))


def test_ragged_rows_are_noted_and_skipped(tmp_path: Path, report: SourceReport) -> None:
    rows = list(read_csv(table(tmp_path, "a,b\n1,2\n3\n4,5,6\n7,8\n"), ("a",), report))
    assert [row["a"] for row in rows] == ["1", "7"]
    assert len(report.notes) == 2
    assert "line 3: 1 fields, not 2" in report.notes[0]


def test_an_unclosed_quote_does_not_swallow_the_file(tmp_path: Path, report: SourceReport) -> None:
    with pytest.raises(DataError, match="not valid CSV"):
        list(read_csv(table(tmp_path, 'a,b\n1,"open\n2,x\n3,y\n'), ("a",), report))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_unicode_encodings_are_detected(
    tmp_path: Path, report: SourceReport, encoding: str
) -> None:
    path = table(tmp_path, "id,title\n1,Åska über Dach\n".encode(encoding))
    assert next(read_csv(path, ("id",), report))["title"] == "Åska über Dach"
    assert report.notes == []


def test_windows_latin_is_read_and_noted(tmp_path: Path, report: SourceReport) -> None:
    path = table(tmp_path, "id,title\n1,Café – night\n".encode("cp1252"))
    assert next(read_csv(path, ("id",), report))["title"] == "Café – night"
    assert "cp1252" in report.notes[0]


def test_binary_is_refused(tmp_path: Path, report: SourceReport) -> None:
    with pytest.raises(DataError, match="not a text file"):
        read_text(table(tmp_path, b"RIFF\0\0\0\0WAVE"), report)
    with pytest.raises(DataError, match="cannot read"):
        read_text(tmp_path / "nowhere.csv", report)


def test_bad_json_lines_are_skipped(tmp_path: Path, report: SourceReport) -> None:
    lines = '{"file": "a", "captions": ["x", "y"]}\n\nno json\n[1]\n{"file": 3, "title": null}\n'
    rows = list(read_jsonl(table(tmp_path, lines), report))
    assert rows == [{"file": "a", "captions": ["x", "y"]}, {"file": "3"}]
    assert len(report.notes) == 2


def test_lists_are_split_without_repeats() -> None:
    assert split_list("a; b,c;;a ,") == ("a", "b", "c")
    assert split_list("one, two", ";") == ("one, two",)


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
