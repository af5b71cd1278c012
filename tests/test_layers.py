"""Lower folders never import higher ones, at the top of a module or inside a function."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "diffsound"

# Every folder may import the modules of BASE and the folders before it. A bundle carries defaults
# of the settings of a generation: these stand below `model`.
ORDER = (
    "audio", "text", "codec", "decoder", "vocoder", "generation.settings", "judges", "model",
    "generation",
    "data", "training", "evaluation", "batch", "serving", "cli",
)  # fmt: skip
# Loose modules that every folder may use, each with those that it may use itself.
BASE: dict[str, tuple[str, ...]] = {
    "errors": (),
    "files": ("errors",),
    "threads": (),
    "html": ("files",),
    "config": ("errors", "files"),
    "weights": ("errors", "files"),
}
DOORS = ("__init__", "__main__")  # what opens the package may import anything


def modules(folder: Path = SOURCE) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, ...]]:
    """The parts below `diffsound` of every import of the package, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, *parts = name.split(".")
            if package == "diffsound":
                yield tuple(parts)


def allowed(path: Path, target: tuple[str, ...]) -> bool:
    here = path.relative_to(SOURCE).parts
    if len(here) == 1:
        name = path.stem
        return name in DOORS or target[0] in BASE[name]
    if target in ((), ("__version__",)) or target[0] in BASE:
        return True
    return place(target) <= place((here[0], path.stem))


def place(module: tuple[str, ...]) -> int:
    whole = ".".join(module[:2])
    return ORDER.index(whole if whole in ORDER else module[0])


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_what_is_below_it(path: Path) -> None:
    for target in imports(path):
        assert allowed(path, target), f"{path.relative_to(SOURCE)} imports {'.'.join(target)}"


def test_every_folder_and_loose_module_has_its_place() -> None:
    folders = {path.parent.relative_to(SOURCE).parts[0] for path in SOURCE.glob("*/*.py")}
    assert folders == {name for name in ORDER if "." not in name}
    assert {path.stem for path in SOURCE.glob("*.py")} == {*BASE, *DOORS}


def test_the_mathematics_knows_only_torch() -> None:
    for path in modules(SOURCE / "decoder" / "diffusion"):
        for target in imports(path):
            assert target[:2] == ("decoder", "diffusion"), f"{path} imports {target}"


def test_a_wrong_import_is_found_inside_a_function(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("def f():\n    from diffsound.training import loop\n    import diffsound.cli\n")
    assert list(imports(path)) == [("training", "loop"), ("cli",)]
    assert not allowed(SOURCE / "generation" / "pipeline.py", ("training", "loop"))


# Of these, six are `__init__.py` with a docstring alone.
MOST_MODULES = 49


def test_one_sentence_on_the_command_line_loads_few_modules(tmp_path: Path) -> None:
    code = (
        "import atexit, sys; from diffsound.cli.main import run; "
        "atexit.register(lambda: print(*sorted(n for n in sys.modules if 'diffsound' in n))); "
        "run()"
    )
    given = ["a dog barks", "--duration", "1", "-q", "-o", str(tmp_path / "x.wav")]
    command = [sys.executable, "-c", code, *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert (tmp_path / "x.wav").is_file()
    loaded = [name for name in done.stdout.split() if name.split(".")[0] == "diffsound"]
    assert "diffsound.generation.pipeline" in loaded
    assert len(loaded) <= MOST_MODULES, loaded
