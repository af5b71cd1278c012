"""Runs a page of the documentation as a reader would: its blocks in order, in one shell and one
Python session.

    python docs_runner.py PAGE.md

`bash` blocks go to one shell that stops at the first failure, `python` blocks share their names.
Other blocks are not run.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

RUN = ("bash", "python")


class Block(NamedTuple):
    """A fenced block: its language (may be empty), its text and the line it begins on."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """Every fenced block of a Markdown page, in order."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, flags=re.M | re.S)
    return [Block(m[1], m[2], text.count("\n", 0, m.start()) + 2) for m in found]


def diffsound_lines(block: Block) -> list[str]:
    """The diffsound commands of a block, continued lines joined, from `diffsound` on."""
    lines = re.sub(r"\\\n\s*", "", block.text).splitlines()
    found = (re.search(r"(?:^|[$|&] |--no.python +)(diffsound .+)", line) for line in lines)
    return [re.split(r" [|&]{1,2} | 2?> ", match[1])[0] for match in found if match]


class Shell:
    """A bash that runs one text after the other, and ends with all it has started."""

    def __init__(self, folder: Path) -> None:
        self._script, self._done = folder / "block.sh", folder / "done"
        self._process = subprocess.Popen(
            ["bash", "-e"], stdin=subprocess.PIPE, text=True, start_new_session=True
        )

    def run(self, text: str) -> bool:
        """Whether all of it succeeded."""
        self._script.write_text(text, encoding="utf-8")
        self._done.unlink(missing_ok=True)
        assert self._process.stdin is not None
        self._process.stdin.write(f". {self._script} < /dev/null\n: > {self._done}\n")
        self._process.stdin.flush()
        # Not by reading its output to the end: what runs in the background keeps that open.
        while not self._done.exists() and self._process.poll() is None:
            time.sleep(0.02)
        return self._done.exists()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)


def main(page: Path) -> None:
    names = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Shell(Path(folder))) as shell:
        for block in blocks(page):
            where = f"{page.name}, line {block.line}"
            print(f"# {where}", flush=True)
            if block.language == "bash" and not shell.run(block.text):
                sys.exit(f"{where} failed")
            if block.language == "python":
                exec(compile(block.text, where, "exec"), names)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
