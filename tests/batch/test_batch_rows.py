"""Reading files of prompts."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffsound.batch.rows import RowTask, read_requests
from diffsound.errors import DataError


def write(path: Path, *rows: dict | str) -> Path:
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_jsonl_csv_and_text_say_the_same(tmp_path: Path) -> None:
    prompts = ["a dog barks", 'rain, "heavy"\nand wind', "雨"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"prompt": p}) + "\n\n" for p in prompts))
    with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8-sig") as stream:
        csv.writer(stream).writerows([["prompt"], *([p] for p in prompts)])
    by_json = read_requests(tmp_path / "a.jsonl", "wav")
    by_csv = read_requests(tmp_path / "a.csv", "wav")
    assert [r.prompt for r in by_json] == [r.prompt for r in by_csv] == prompts
    assert [r.files for r in by_json] == [r.files for r in by_csv]
    assert [r.line for r in by_json] == [1, 3, 5]
    assert [r.line for r in by_csv] == [2, 3, 5]  # the second prompt spans two lines

    (tmp_path / "a.txt").write_text("a dog barks\n\n雨\n", encoding="utf-8")
    by_text = read_requests(tmp_path / "a.txt", "wav")
    assert [r.seeds for r in by_text] == [by_json[0].seeds, by_json[2].seeds]


def test_only_line_ends_end_a_line(tmp_path: Path) -> None:
    """Python's own list of line ends is longer than that of any file format."""
    odd = "rain\x0b\x0c\x1c\x85\u2028wind"
    for name, *head in (("p.csv", "prompt"), ("p.txt",)):
        (request,) = read_requests(write(tmp_path / name, *head, odd), "wav")
        assert request.prompt == odd


def test_an_empty_prompt_is_a_row_in_every_format(tmp_path: Path) -> None:
    """It is reported with its line when it comes to be made; the other rows are not held up."""
    by_json = write(tmp_path / "p.jsonl", {"prompt": "rain"}, {"prompt": "", "seed": 3})
    by_csv = write(tmp_path / "p.csv", "prompt,seed", "rain,", ",3")
    for path in (by_json, by_csv):
        assert [request.prompt for request in read_requests(path, "wav")] == ["rain", ""]


def test_settings_of_a_row_go_before_those_of_the_batch(tmp_path: Path) -> None:
    path = write(
        tmp_path / "p.jsonl",
        {"prompt": "rain", "seed": 5, "duration": 2, "steps": 7, "negative": "wind"},
        {"prompt": "rain", "seed": None, "name": "second", "candidates": 2},
    )
    first, second = read_requests(path, "flac", duration=9.0, guidance=3.0, top_k=None)
    assert first.settings == {
        "duration": 2.0, "negative_prompt": "wind", "num_inference_steps": 7, "guidance_scale": 3.0,
    }  # fmt: skip
    assert second.settings == {"duration": 9.0, "guidance_scale": 3.0}
    assert first.files == ("rain-5.flac",)
    assert second.files == ("second-1.flac", "second-2.flac")
    assert second.seeds[1] == second.seeds[0] + 1
    assert first.group != second.group


def test_seeds_of_rows_without_one_depend_on_the_prompt_alone(tmp_path: Path) -> None:
    short = write(tmp_path / "a.txt", "rain", "wind", "rain")
    longer = write(tmp_path / "b.txt", "sea", "rain", "bells", "wind", "rain")
    seeds = {
        path: [(r.prompt, r.seeds) for r in read_requests(path, "wav")] for path in (short, longer)
    }
    assert [pair for pair in seeds[longer] if pair in seeds[short]] == seeds[short]
    assert seeds[short][0] != seeds[short][2]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.jsonl", '{"prompt": "rain"}\n{"prompt": "a", "volume": 3}', "line 2.*'volume'"),
        ("p.jsonl", '{"prompt": "rain", "durations": 3}', "did you mean 'duration'"),
        ("p.jsonl", '{"prompt": "rain", "duration": 99}', "less than or equal to 30"),
        ("p.jsonl", '{"prompt": "rain", "sampler": "magic"}', "'ancestral', 'confidence'"),
        ("p.jsonl", '{"prompt": "rain"}\nrain', "line 2 is not JSON"),
        ("p.jsonl", '["rain"]', "line 1 must be an object"),
        ("p.jsonl", '{"seed": 1}', "'prompt'"),
        ("p.jsonl", '{"prompt": 3}', "'prompt'"),
        ("p.jsonl", '{"prompt": "a", "seed": -1}', "'seed'"),
        ("p.jsonl", '{"prompt": "a", "candidates": 1000000}', "'candidates'"),
        ("p.jsonl", '{"prompt": "a", "candidates": 3, "keep": 0}', "'keep'"),
        (
            "p.jsonl",
            '{"prompt": "a", "candidates": 3, "keep": 4}',
            "line 1: keep must .* 3, not 4",
        ),
        ("p.jsonl", '{"prompt": "a", "keep": 2}', "line 1: keep must .* 1, not 2"),
        ("p.jsonl", '{"prompt": "a", "variations": 1}', "'variations'"),
        (
            "p.jsonl",
            '{"prompt": "a", "variations": 2, "loop": true}',
            "variations must be given without loop",
        ),
        ("p.jsonl", '{"prompt": "a", "loop": true, "trim": true}', "line 1: trim would open"),
        ("p.csv", "prompt,rate\nrain,1\n", "'rate'"),
        ("p.csv", "prompt,bit_depth\nrain,20\n", "'16', '24'"),
        ("p.jsonl", '{"prompt": "a", "name": "../x"}', "'name'"),
        ("p.jsonl", '{"prompt": "a", "name": ".hidden"}', "'name'"),
        ("p.jsonl", "\n\n", "no prompts"),
        ("p.csv", "", "no column 'prompt'"),
        ("p.csv", "text,seed\nrain,1\n", "unknown columns 'text'"),
        ("p.csv", "prompt,volume,pan\nrain,1,2\n", "'volume', 'pan'"),
        ("p.csv", "prompt,seed\nrain\n", "line 2 has 1 cells"),
        ("p.csv", 'prompt\n"rain\n', "not CSV"),
        ("p.csv", "prompt,seed\nrain,x\n", "'seed'"),
        ("p.csv", "prompt,seed\nrain,1\nrain,1\n", "line 2 and 3 would both"),
        ("p.xlsx", "prompt", "name it .jsonl, .csv or .txt"),
    ],
)
def test_bad_files_are_named_with_their_line(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message) as caught:
        read_requests(tmp_path / name, "wav")
    assert "\n" not in str(caught.value)


def test_a_depth_that_the_format_cannot_hold_is_named_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", {"prompt": "a"}, {"prompt": "b", "bit_depth": "32f"})
    with pytest.raises(DataError, match=r"line 2: a .flac file cannot hold 32 bits"):
        read_requests(path, "flac")


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read"):
        read_requests(tmp_path / "none.jsonl", "wav")
    (tmp_path / "p.csv").write_bytes(b"prompt\n\xff\xfe\n")
    with pytest.raises(DataError, match="not UTF-8"):
        read_requests(tmp_path / "p.csv", "wav")


def test_names_that_differ_in_case_only_are_one_file_on_some_machines(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", {"prompt": "a", "name": "X"}, {"prompt": "b", "name": "x"})
    with pytest.raises(DataError, match="would both"):
        read_requests(path, "wav")


@pytest.mark.parametrize("folder", ["Manifest.jsonl", "LICENCE.txt", "wind.wav"])
def test_a_folder_of_a_pack_cannot_have_the_name_of_a_file(tmp_path: Path, folder: str) -> None:
    rows = {"prompt": "rain", "folder": folder}, {"prompt": "wind"}
    with pytest.raises(DataError, match=r"line 1: the pack has a file named"):
        read_requests(write(tmp_path / "p.jsonl", *rows), "wav", folders=True)


@given(
    st.lists(st.tuples(st.text(min_size=1), st.integers(0, 2**63 - 1)), min_size=1, max_size=5),
    st.text(),
)
def test_keys_tell_every_request_apart(pairs: list[tuple[str, int]], context: str) -> None:
    requests = {pair: RowTask(1, pair[0], (pair[1],), ("x.wav",), {}, {}) for pair in pairs}
    keys = {request.key(0, [context]) for request in requests.values()}
    assert len(keys) == len(requests)
    first = next(iter(requests.values()))
    assert first.key(0, [context]) != first.key(0, [context + "x"])
