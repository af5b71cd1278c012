"""Lower folders never import higher ones."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "diffsound"
LOW = ("audio", "text", "codec", "decoder", "vocoder")
HIGH = (
    "data",
    "training",
    "evaluation",
    "serving",
    "cli",
    "pipeline",
    "bundle",
    "editing",
    "sound",
)


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
    return names


def modules(folder: str) -> list[Path]:
    return sorted((SOURCE / folder).rglob("*.py"))


@pytest.mark.parametrize("folder", LOW)
def test_stages_know_nothing_of_the_workshop(folder: str) -> None:
    assert modules(folder)
    for path in modules(folder):
        for name in imported(path):
            parts = name.split(".")
            assert not (parts[0] == "diffsound" and len(parts) > 1 and parts[1] in HIGH), (
                f"{path.relative_to(SOURCE)} imports {name}"
            )


def test_the_mathematics_knows_only_torch() -> None:
    for path in modules("decoder/diffusion"):
        for name in imported(path):
            if name.startswith("diffsound"):
                assert name.startswith("diffsound.decoder.diffusion"), f"{path} imports {name}"


@pytest.mark.parametrize("folder", ["data", "training", "evaluation"])
def test_the_workshop_knows_nothing_of_the_interfaces(folder: str) -> None:
    for path in modules(folder):
        for name in imported(path):
            assert not name.startswith(("diffsound.cli", "diffsound.serving")), (
                f"{path.relative_to(SOURCE)} imports {name}"
            )
