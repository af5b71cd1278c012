"""Mutated bundles: loaded, or refused in one line; verify agrees with load."""

from __future__ import annotations

import copy
import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attack_support import attack, survives
from diffsound.model.bundle import Bundle, read_config
from diffsound.model.checks import copy_bundle, verify

ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from([0, -1, 1, 2, 3, 255, 10**6, 10**12, 2**63, 10**400, "../x", "/x", [], {}]),
    st.lists(st.integers(-2, 300), max_size=10),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)  # fmt: skip


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a JSON document."""
    if above:
        yield above
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, part in items:
        yield from places(part, (*above, key))


@st.composite
def changed(draw: st.DrawFn, config: dict[str, Any]) -> dict[str, Any]:
    """The config with a few values replaced, removed, or put under another key."""
    made = copy.deepcopy(config)
    for _ in range(draw(st.integers(1, 3))):
        *parents, last = draw(st.sampled_from(sorted(places(made), key=str)))
        node: Any = made
        for key in parents:
            node = node[key]
        match draw(st.sampled_from(["set", "set", "set", "remove", "rename"])):
            case "set":
                node[last] = draw(ODD)
            case "remove":
                del node[last]
            case "rename" if isinstance(node, dict):
                node[draw(st.text(max_size=12))] = node.pop(last)
    return made


@pytest.fixture(scope="module")
def scratch(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path_factory.mktemp("attack") / "bundle"))


@attack(120)
@given(st.data())
def test_mutated_configs(scratch: Path, tiny_folder: Path, data: st.DataObject) -> None:
    config = data.draw(changed(json.loads((tiny_folder / "config.json").read_text())))
    (scratch / "config.json").write_text(json.dumps(config))
    loads = survives(lambda: Bundle.from_pretrained(scratch))
    problems: list[str] = []
    passes = survives(lambda: problems.extend(verify(scratch))) and not problems
    assert loads or not passes  # what verify finds good, loads
    target = scratch.parent / "target"
    survives(lambda: copy_bundle(scratch, target))
    shutil.rmtree(target, ignore_errors=True)
    assert sorted(path.name for path in scratch.parent.iterdir()) == ["bundle"]


@attack(120)
@given(st.data())
def test_mutated_weights(scratch: Path, tiny_folder: Path, data: st.DataObject) -> None:
    """The header of a safetensors file is JSON behind its length."""
    config = json.loads((tiny_folder / "config.json").read_text()) | {"files": {}}
    (scratch / "config.json").write_text(json.dumps(config))
    whole = (tiny_folder / "codec.safetensors").read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    header = data.draw(changed(json.loads(whole[8 : 8 + length])))
    text = json.dumps(header).encode()
    size = data.draw(st.sampled_from([len(text), 0, 2**63, len(text) + 1]))
    try:
        (scratch / "codec.safetensors").write_bytes(
            struct.pack("<Q", size) + text + whole[8 + length :]
        )
        survives(lambda: Bundle.from_pretrained(scratch))
    finally:
        (scratch / "codec.safetensors").write_bytes(whole)


@attack(200)
@given(st.one_of(st.binary(max_size=200), st.text(alphabet='{}[]",:0e9-', max_size=200)))
def test_configs_of_noise(scratch: Path, content: bytes | str) -> None:
    data = content if isinstance(content, bytes) else content.encode()
    (scratch / "config.json").write_bytes(data)
    survives(lambda: read_config(scratch))
