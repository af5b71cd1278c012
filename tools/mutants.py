"""Change the code in small ways and see whether the tests notice.

    python tools/mutants.py                        # all modules below, into runs/mutants.jsonl
    python tools/mutants.py decoder/diffusion      # only those whose path holds this
    python tools/mutants.py --report               # what is known so far
    python tools/mutants.py --minutes 30           # stop after half an hour; run again to continue
    python tools/mutants.py --again                # after new tests: those that survived, once more

A mutant is a copy of one module with one change: `<` for `<=`, `+` for `-`, a number that is one
more, a condition that is reversed, a `raise` left out. The module's nearby tests run on it; if none
fails, the mutant survives, and either a test is missing or the change makes no difference. Results
are kept by the change and the text of the module, so a run that is stopped is continued, and only
changed modules are tried again.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "diffsound"
DIFFUSION = ("tests/decoder/diffusion", "tests/decoder/test_diffsound.py")
# Modules, and the tests near them, quickest first.
TARGETS: dict[str, tuple[str, ...]] = {
    **{
        f"decoder/diffusion/{name}.py": DIFFUSION
        for name in ("process", "loss", "samplers", "official")
    },
    "text/mbtg.py": ("tests/text/test_mbtg.py",),
    "data/loaders.py": ("tests/data/test_loaders.py",),
    "evaluation/metrics.py": ("tests/evaluation/test_metrics.py",),
    "evaluation/compare.py": ("tests/evaluation/test_compare.py", "tests/evaluation/test_study.py"),
    "evaluation/captions.py": (
        "tests/evaluation/test_ranking.py",
        "tests/evaluation/test_captions.py",
    ),
    "judges/ranking.py": ("tests/evaluation/test_ranking.py", "tests/judges/test_matcher.py"),
}
# Changes that make no difference to what the code does: (module, changed line) -> why.
_PROCESS, _TOLERANCE = "decoder/diffusion/process.py", "the size of a tolerance for rounding"
EQUIVALENT: dict[tuple[str, str], str] = {
    (_PROCESS, "tolerance = (2e-09) # of rounding in 1 − masked where little is left"): _TOLERANCE,
    (
        _PROCESS,
        "return torch.where(values > 0, values.clamp_min((2e-38)).log(), LOG_ZERO)",
    ): "only keeps the logarithm of values that are not used finite",
}

_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: the text from `start` to `end` of the module becomes `new`."""

    module: str
    line: int
    start: int
    end: int
    old: str
    new: str
    digest: str

    @property
    def key(self) -> str:
        """Names this change of this text of the module."""
        return f"{self.module}@{self.digest}:{self.start}-{self.end}:{self.new}"

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {_short(self.old)} -> {_short(self.new)}"


def mutants_of(module: str, source: str) -> list[Mutant]:
    """Every mutant of a module's text, in order."""
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    raw, digest = source.encode(), hashlib.sha256(source.encode()).hexdigest()[:12]
    found: dict[tuple[int, int, str], Mutant] = {}
    for node, changed in _changes(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        old, new = raw[start:end].decode(), ast.unparse(changed)
        if isinstance(node, ast.expr):
            new = f"({new})"
        found[start, end, new] = Mutant(module, node.lineno, start, end, old, new, digest)
    return sorted(found.values(), key=lambda mutant: (mutant.start, mutant.end, mutant.new))


def _changes(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, ast.AST]]:
    """(node, what it becomes) for every change there is."""
    for node in _code(tree):
        match node:
            case ast.Compare(left, [op, *ops], right) if type(op) in _SWAPS:
                yield node, ast.Compare(left, [_SWAPS[type(op)](), *ops], right)  # type: ignore[list-item]
            case ast.BoolOp(op, values):
                yield node, ast.BoolOp(_SWAPS[type(op)](), values)  # type: ignore[arg-type]
            case ast.BinOp(left, op, right) if type(op) in _SWAPS:
                yield node, ast.BinOp(left, _SWAPS[type(op)](), right)  # type: ignore[arg-type]
            case ast.AugAssign(target, op, value) if type(op) in _SWAPS:
                yield node, ast.AugAssign(target, _SWAPS[type(op)](), value)  # type: ignore[arg-type]
            case ast.UnaryOp(_, operand):
                yield node, operand
            case ast.Constant(bool(value)):
                yield node, ast.Constant(not value)
            case ast.Constant(int(value)):
                yield node, ast.Constant(value + 1)
            case ast.Constant(float(value)):
                yield node, ast.Constant(2 * value if value else 1.0)
            case ast.IfExp(test, body, otherwise):
                yield node, ast.IfExp(test, otherwise, body)
            case ast.If(test, _, _) | ast.While(test, _, _):
                yield test, ast.UnaryOp(ast.Not(), test)
            case ast.Raise():
                yield node, ast.Pass()
            case ast.Return(ast.expr()):
                yield node, ast.Return(ast.Constant(None))


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run: no annotations, no texts of errors, no imports."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        if isinstance(node, ast.keyword) and node.arg == "strict":
            continue  # of zip: both sides are as long by construction
        for child in value if isinstance(value, list) else [value]:
            skipped = isinstance(child, ast.JoinedStr | ast.Import | ast.ImportFrom)
            alias = isinstance(child, ast.Assign) and isinstance(child.value, ast.Subscript)
            at_top = isinstance(node, ast.Module)
            if isinstance(child, ast.AST) and not skipped and not (alias and at_top):
                yield from _code(child)


def survives(mutant: Mutant, source: str, tests: Sequence[str], seconds: float) -> str:
    """ "killed", "timeout" or "survived", by the tests in a process of its own."""
    raw = source.encode()
    changed = raw[: mutant.start] + mutant.new.encode() + raw[mutant.end :]
    with tempfile.TemporaryDirectory(prefix="diffsound-mutant-") as scratch:
        # Links to everything, but a copy of the one module and of the folders above it.
        place = Path(scratch, "src", "diffsound")
        _linked_copy(PACKAGE, place, Path(mutant.module))
        (place / mutant.module).write_bytes(changed)
        return _run_tests(Path(scratch), tests, seconds)


def _check_passes(module: str, source: str, seconds: float) -> None:
    """Tests that fail on the module as it is would kill every mutant."""
    nothing = Mutant(module, 1, 0, 0, "", "", "")
    if survives(nothing, source, TARGETS[module], seconds) != "survived":
        raise SystemExit(f"{' '.join(TARGETS[module])} fails on {module} as it is")


def _linked_copy(source: Path, target: Path, module: Path) -> None:
    target.mkdir(parents=True)
    head, *rest = module.parts
    for entry in source.iterdir():
        if entry.name == head and rest:
            _linked_copy(entry, target / head, Path(*rest))
        elif entry.name not in (head, "__pycache__"):
            (target / entry.name).symlink_to(entry)


def _run_tests(scratch: Path, tests: Sequence[str], seconds: float) -> str:
    """In a fork of this process, which has torch and pytest loaded already."""
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(ROOT)
        os.environ["PYTHONPATH"] = str(scratch / "src")
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(scratch / "hypothesis")
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.path[:0] = [str(scratch / "src")]
        sys.dont_write_bytecode = True
        silence = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(silence, stream)
        import pytest

        options = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header")
        base = f"--basetemp={scratch / 'tests'}"
        os._exit(int(pytest.main([*options, base, *tests])))
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def report(results: dict[str, str], every: Sequence[Mutant]) -> str:
    """Killed and survived by module, and what survived."""
    lines = [f"{'module':32} mutants  tried  killed  survived"]
    counts: Counter[str] = Counter()
    alive = []
    for module in dict.fromkeys(mutant.module for mutant in every):
        own = [mutant for mutant in every if mutant.module == module]
        tried = [mutant for mutant in own if mutant.key in results]
        left = [m for m in tried if results[m.key] == "survived" and _why(m) is None]
        equal = [m for m in tried if results[m.key] == "survived" and _why(m) is not None]
        killed = len(tried) - len(left) - len(equal)
        alive += left
        counts.update(mutants=len(own), tried=len(tried), killed=killed, survived=len(left))
        counts["equal"] += len(equal)
        lines.append(f"{module:32} {len(own):7} {len(tried):6} {killed:7} {len(left):9}")
    judged = counts["killed"] + counts["survived"]
    share = 100 * counts["killed"] / max(judged, 1)
    lines.append(
        f"{'all':32} {counts['mutants']:7} {counts['tried']:6} {counts['killed']:7} "
        f"{counts['survived']:9}   {share:.1f} % killed, {counts['equal']} make no difference"
    )
    return "\n".join([*lines, "", *(f"survived  {mutant}" for mutant in alive)])


def _why(mutant: Mutant) -> str | None:
    """Why a survivor makes no difference, if that is known."""
    source = (PACKAGE / mutant.module).read_bytes()
    first = source.rfind(b"\n", 0, mutant.start) + 1
    last = source.find(b"\n", mutant.end)
    line = source[first : mutant.start].decode() + mutant.new + source[mutant.end : last].decode()
    return EQUIVALENT.get((mutant.module, " ".join(line.split())))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help="only modules whose path holds one of these")
    parser.add_argument("--results", type=Path, default=Path("runs/mutants.jsonl"))
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--seconds", type=float, default=180.0, help="the most for one mutant")
    parser.add_argument("--seed", type=int, default=0, help="of the order they are tried in")
    parser.add_argument("--again", action="store_true", help="try those again that survived")
    parser.add_argument("--report", action="store_true", help="only say what is known")
    given = parser.parse_args(arguments)
    chosen = [m for m in TARGETS if not given.parts or any(part in m for part in given.parts)]
    if not chosen:
        parser.error(f"no module holds {given.parts}; there are {', '.join(TARGETS)}")
    sources = {module: (PACKAGE / module).read_text(encoding="utf-8") for module in chosen}
    every = [mutant for module in chosen for mutant in mutants_of(module, sources[module])]
    results: dict[str, str] = {}
    if given.results.exists():
        for line in given.results.read_text(encoding="utf-8").splitlines():
            results.update(json.loads(line))
    if not given.report:
        import hypothesis  # noqa: F401  loaded once, for all the forks
        import numpy  # noqa: F401
        import pytest  # noqa: F401
        import torch

        torch.set_num_threads(1)
        given.results.parent.mkdir(parents=True, exist_ok=True)
        known = ("killed", "timeout") if given.again else ("killed", "timeout", "survived")
        waiting = [mutant for mutant in every if results.get(mutant.key) not in known]
        by_tests = {TARGETS[mutant.module]: mutant.module for mutant in waiting}
        for module in by_tests.values():
            _check_passes(module, sources[module], given.seconds)
        random.Random(given.seed).shuffle(waiting)
        end = time.monotonic() + 60 * given.minutes
        with given.results.open("a", encoding="utf-8") as log:
            for number, mutant in enumerate(waiting, 1):
                if time.monotonic() > end:
                    break
                source, tests = sources[mutant.module], TARGETS[mutant.module]
                results[mutant.key] = survives(mutant, source, tests, given.seconds)
                log.write(json.dumps({mutant.key: results[mutant.key]}) + "\n")
                log.flush()
                print(f"{number}/{len(waiting)} {results[mutant.key]:9} {mutant}", flush=True)
    print(report(results, every))
    return 0


if __name__ == "__main__":
    sys.exit(main())
