"""docs/paper-to-code.md: everything of the paper is in it, and everything it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "paper-to-code.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/.*-]+\.(?:py|yaml))(?:: (\w+))?`", PAGE)))


@cache
def defined(path: Path) -> set[str]:
    """Classes and functions of a module, methods included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


@pytest.mark.parametrize(("path", "name"), NAMED, ids=lambda part: part.replace("/", "-"))
def test_what_the_page_names_exists(path: str, name: str) -> None:
    places = [ROOT, ROOT / "src" / "diffsound"]
    found = [file for place in places for file in place.glob(path)]
    assert found, f"there is no {path}"
    assert not name or name in defined(found[0])


def test_the_page_names_much() -> None:
    assert len(NAMED) > 45


def numbers(kind: str) -> set[int]:
    """All numbers the table's first column gives for eq., table, figure or algorithm."""
    found: set[int] = set()
    for cell in re.findall(r"^\| ([^|]+) \|", PAGE, flags=re.M):
        for first, last in re.findall(rf"{kind}s?\.? (\d+)(?:–(\d+))?", cell):
            found |= set(range(int(first), int(last or first) + 1))
    return found


@pytest.mark.parametrize(
    ("kind", "last"), [("eq", 35), ("algorithm", 3), ("table", 7), ("figure", 4)]
)
def test_nothing_of_the_paper_is_left_out(kind: str, last: int) -> None:
    assert numbers(kind) == set(range(1, last + 1))
