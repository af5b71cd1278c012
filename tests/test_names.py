"""One word per idea: no two classes of the package have the same name."""

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "diffsound"


def classes() -> dict[str, set[str]]:
    """The modules that define each class. A class for the type checker beside one made at run
    time is one class."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].add(str(path.relative_to(SOURCE)))
    return found


def test_every_class_has_a_name_of_its_own() -> None:
    assert {name: sorted(where) for name, where in classes().items() if len(where) > 1} == {}


def test_modules_fit_on_a_few_screens() -> None:
    lengths = {
        str(path.relative_to(SOURCE)): len(path.read_text(encoding="utf-8").splitlines())
        for path in SOURCE.rglob("*.py")
    }
    assert {name: lines for name, lines in lengths.items() if lines > 450} == {}
