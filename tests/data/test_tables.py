from pathlib import Path

import pytest

from diffsound.data.tables import SourceReport, read_csv, read_jsonl, read_text, split_list
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
    path = table(
        tmp_path, '{"file": "a", "captions": ["x", "y"]}\n\nno json\n[1]\n{"file": 3}\n{"b": 1}\n'
    )
    rows = list(read_jsonl(path, ("file",), report))
    assert rows == [{"file": "a", "captions": ["x", "y"]}, {"file": "3"}]
    assert len(report.notes) == 3


def test_lists_are_split_without_repeats() -> None:
    assert split_list("a; b,c;;a ,") == ("a", "b", "c")
    assert split_list("one, two", ";") == ("one, two",)
