"""What the core installs, with its licences: `make sbom`, and the check of the licences.

python tools/dependencies.py            names, versions and licences
python tools/dependencies.py --sbom     the same as a CycloneDX document
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ALLOWED = Path(__file__).with_name("licences.txt")


def core(root: str = "diffsound") -> dict[str, Distribution]:
    """Every installed package that `pip install diffsound` brings without extras, by name."""
    found: dict[str, Distribution] = {}
    waiting = [root]
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # of another platform, or of an extra that is not installed
        for line in found[name].requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return dict(sorted(found.items()))


def licence(package: Distribution) -> str:
    """What a package says of its licence: an SPDX expression, else classifiers, else a text."""
    metadata = package.metadata
    text = (metadata.get("License") or "").strip()
    classifiers = [
        line.split(" :: ")[-1]
        for line in metadata.get_all("Classifier") or ()
        if line.startswith("License :: ")
    ]
    short = text if text and "\n" not in text and len(text) < 40 else ""
    return metadata.get("License-Expression") or " AND ".join(classifiers) or short or "unknown"


def allowed() -> set[str]:
    """The licences in `licences.txt`."""
    lines = ALLOWED.read_text(encoding="utf-8").splitlines()
    return {line.strip() for line in lines if line.strip() and not line.startswith("#")}


def is_allowed(expression: str, known: set[str]) -> bool:
    """Whether each part of an expression joined by AND, or one of its choices, is known."""

    def is_known(name: str) -> bool:
        return name.strip() in known or name.strip(" ()") in known

    return all(any(map(is_known, part.split(" OR "))) for part in expression.split(" AND "))


def sbom() -> dict[str, Any]:
    """A CycloneDX 1.5 document of the core."""
    packages = core()
    root = packages.pop("diffsound")

    def component(name: str, package: Distribution, kind: str = "library") -> dict[str, Any]:
        return {
            "type": kind,
            "bom-ref": f"pkg:pypi/{name}@{package.version}",
            "name": name,
            "version": package.version,
            "purl": f"pkg:pypi/{name}@{package.version}",
            "licenses": [{"license": {"name": licence(package)}}],
        }

    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component("diffsound", root, "application")},
        "components": [component(name, package) for name, package in packages.items()],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What the core installs.")
    parser.add_argument("--sbom", action="store_true", help="as a CycloneDX document")
    if parser.parse_args().sbom:
        print(json.dumps(sbom(), indent=2))
        return
    for name, package in core().items():
        print(f"{name} {package.version}: {licence(package)}")


if __name__ == "__main__":
    main()
