"""Write docs/reliability.md from the counts of the attack suite: the last step of `make attack`.

python tools/reliability.py counts.jsonl
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
HEAD = """# Reliability

What the attack suite (`tests/attack/`) did in the run that wrote this page, without losing anything
or letting anything through. `make attack` runs it at length and writes the page again; a run that
fails writes nothing. CI runs a short form.
"""
SECTIONS = {
    "crash": """## Killed

Each command is ended with `kill -9` just before a random change of its folder, or after a random
time, and started again in the same folder until it has been killed often enough. After every kill
what is there must be whole; at the end its files must be the bytes of a run that was never killed.
The server is killed while it starts and while it generates: the next one on the same port must
give the same sound for the same seed.
""",
    "fault": """## Failing disks

A shim under Python's file operations makes one of them fail: a full disk (which stays full), an
input/output error of a write, a read, an `fsync` or a renaming, a file that cannot be created. The
command must end in one line or carry on, leave no unfinished file, and give the same bytes when it
is run again. Reads that return half of what was asked for must change nothing. Full disks are also
tested on a real file system of 8 MB (`tests/test_full_disk.py`).
""",
    "fuzz": """## Files from strangers

Mutated sounds, bundles, weights, configs, prompts, manifests and JSON files are either read or
refused in one line.
""",
}


def read_counts(path: Path) -> dict[str, Counter[str]]:
    """The sums of a tally by name; every test and process adds lines of its own."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for line in path.read_text(encoding="utf-8").splitlines():
        counts = json.loads(line)
        found[counts.pop("name")].update(counts)
    return dict(found)


def page(counts: dict[str, Counter[str]]) -> str:
    """The page: a table for each section, with its sums."""
    parts = [HEAD]
    for kind, text in SECTIONS.items():
        rows = {
            name.removeprefix(f"{kind}: "): row
            for name, row in sorted(counts.items())
            if name.startswith(f"{kind}: ")
        }
        if not rows:
            raise SystemExit(f"the tally has no counts of '{kind}'; run: make attack")
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        total: Counter[str] = sum(rows.values(), Counter())
        lines = [["", *columns], ["---", *("---:" for _ in columns)]]
        for name, row in [*rows.items(), ("**all**", total)]:
            lines.append(
                [name, *(f"{row[column]:,}" if column in row else "" for column in columns)]
            )
        parts.append(text + "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines))
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(read_counts(Path(sys.argv[1]))), encoding="utf-8")
