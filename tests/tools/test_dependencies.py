"""The core's dependencies: their licences are allowed, and the SBOM names each."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dependencies import allowed, core, is_allowed, licence, sbom

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_every_dependency_of_the_core_has_an_allowed_licence() -> None:
    packages, known = core(), allowed()
    refused = {n: licence(p) for n, p in packages.items() if not is_allowed(licence(p), known)}
    assert refused == {}


def test_the_walk_finds_what_the_project_requires() -> None:
    lines = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["dependencies"]
    assert {canonicalize_name(Requirement(line).name) for line in lines} <= core().keys()


@pytest.mark.parametrize(
    ("expression", "fine"),
    [
        ("MIT", True),
        ("MIT AND Zlib", True),
        ("GPL-3.0-only OR MIT", True),
        ("(GPL-3.0-only OR MIT) AND Zlib", True),
        ("GPL-3.0-only", False),
        ("MIT AND GPL-3.0-only", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("unknown", False),
    ],
)
def test_expressions(expression: str, fine: bool) -> None:
    assert is_allowed(expression, allowed()) == fine


def test_the_sbom_names_every_package_with_its_version_and_licence() -> None:
    document, packages = sbom(), core()
    assert document["bomFormat"] == "CycloneDX"
    assert document["metadata"]["component"]["name"] == "diffsound"
    found = {part["name"]: part for part in document["components"]}
    assert found.keys() == packages.keys() - {"diffsound"}
    for name, part in found.items():
        assert part["purl"] == f"pkg:pypi/{name}@{packages[name].version}"
        assert part["licenses"][0]["license"]["name"] != "unknown"


def test_every_pinned_version_has_a_checksum() -> None:
    pinned, hashed = (
        (PROJECT.with_name(name)).read_text(encoding="utf-8").splitlines()
        for name in ("constraints.txt", "hashes.txt")
    )
    found = dict(line.split(" --hash=sha256:") for line in hashed if not line.startswith("#"))
    assert found.keys() == {line for line in pinned if not line.startswith("#")}
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in found.values())
