"""Write constraints.txt: the exact versions of every package this environment uses for diffsound.

    python tools/constraints.py > constraints.txt
    python tools/constraints.py --hashes > hashes.txt

Run it in an environment where everything was installed and `make check` has passed. Only packages
that diffsound or one of its extras needs, directly or not, are listed. `--hashes` asks pip which
file it would install for each line of constraints.txt on this machine, and writes its checksum.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
CONSTRAINTS = PROJECT.with_name("constraints.txt")


def wanted() -> list[Requirement]:
    """diffsound's own requirements, every extra included, and what builds it."""
    content = tomllib.loads(PROJECT.read_text(encoding="utf-8"))
    project = content["project"]
    lines = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        lines += extra
    return [Requirement(line) for line in lines]


def closure(requirements: list[Requirement]) -> dict[str, str]:
    """Installed versions of the requirements and of all they need."""
    versions: dict[str, str] = {}
    queue = list(requirements)
    seen: set[tuple[str, frozenset[str]]] = set()
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        # The local part ("+cpu") names a build, not a version another machine can ask for.
        versions[name] = found.version.split("+")[0]
        for line in found.requires or []:
            needed = Requirement(line)
            extras = requirement.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in extras):
                queue.append(needed)
    return versions


def hashed() -> Iterator[str]:
    """The lines of constraints.txt, each with the SHA-256 of the file that pip chooses."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed",
               "--no-deps", "--quiet", "--report", "-", "-r", str(CONSTRAINTS)]  # fmt: skip
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    for package in report["install"]:
        name = canonicalize_name(package["metadata"]["name"])
        version = package["metadata"]["version"].split("+")[0]
        digest = package["download_info"]["archive_info"]["hashes"]["sha256"]
        yield f"{name}=={version} --hash=sha256:{digest}"


def main() -> None:
    parser = argparse.ArgumentParser(description="The exact versions diffsound is known to run on.")
    parser.add_argument("--hashes", action="store_true", help="with the checksum of each file")
    if parser.parse_args().hashes:
        print("# constraints.txt with checksums, for Linux on x86-64, Python 3.11, torch for CPUs.")
        print("# Made by tools/constraints.py --hashes; SECURITY.md says how to install with it.")
        print("\n".join(sorted(hashed())))
        return
    print("# Exact versions that are known to work together; made by tools/constraints.py.")
    for name, version in sorted(closure(wanted()).items()):
        print(f"{name}=={version}")


if __name__ == "__main__":
    main()
