"""The page of the attack suite's counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reliability import HEAD, PAGE, SECTIONS, page, read_counts

LINES = [
    {"name": "crash: batch", "kills": 40, "finished": 9},
    {"name": "crash: serve", "kills": 3},
    {"name": "fault: batch", "faults": 5, "refused": 4},
    {"name": "fuzz: configs", "inputs": 1000, "refused": 900},
    {"name": "fuzz: configs", "inputs": 500, "refused": 1},
]


def test_counts_of_all_processes_are_added_up(tmp_path: Path) -> None:
    path = tmp_path / "counts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES), encoding="utf-8")
    text = page(read_counts(path))
    rows = ["| batch | 40 | 9 |", "| serve | 3 |  |", "| **all** | 43 | 9 |"]
    for row in [*rows, "| configs | 1,500 | 901 |"]:
        assert row in text
    path.write_text(json.dumps(LINES[0]) + "\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="no counts of 'fault'"):
        page(read_counts(path))


def test_the_page_has_the_words_of_its_maker() -> None:
    """It is made again when they change."""
    text = PAGE.read_text(encoding="utf-8")
    assert text.startswith(HEAD)
    for section in SECTIONS.values():
        assert section in text
