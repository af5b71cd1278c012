"""Configs, files of prompts and manifests from strangers: read, or refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from attack_support import attack, survives
from diffsound.batch.manifest import is_made, read_manifest
from diffsound.batch.rows import read_requests
from diffsound.config import load_config
from diffsound.evaluation.recognise import read_prompts
from diffsound.training.codec import CodecRun

YAML = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(st.text(max_size=6), st.integers(),
                      st.sampled_from(["stage", "codec", "mel", "train", "backbone", "kind"])),
            inner, max_size=4,
        ),
    ),
    max_leaves=20,
)  # fmt: skip
SYNTAX = st.text(alphabet="{}[]&*!|>-?:#,'\"% \n\tab1", max_size=120)
ROW = st.dictionaries(
    st.one_of(
        st.sampled_from(["prompt", "seed", "duration", "steps", "name", "keep", "candidates"]),
        st.text(max_size=6),
    ),
    st.one_of(st.none(), st.integers(), st.floats(), st.text(max_size=12), st.lists(st.integers())),
    max_size=5,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attack")


@attack(200)
@given(st.one_of(SYNTAX.map(str.encode), YAML.map(lambda v: yaml.safe_dump(v).encode()),
                 st.binary(max_size=120)))  # fmt: skip
def test_configs(folder: Path, content: bytes) -> None:
    path = folder / "config.yaml"
    path.write_bytes(content)
    survives(lambda: load_config(CodecRun, path))
    survives(lambda: read_prompts(path))


@attack(200)
@given(st.lists(ROW, max_size=4), st.binary(max_size=60))
def test_rows_of_json(folder: Path, rows: list[dict[str, object]], noise: bytes) -> None:
    path = folder / "rows.jsonl"
    path.write_bytes("".join(json.dumps(row) + "\n" for row in rows).encode())
    survives(lambda: read_requests(path, "wav"))
    path.write_bytes(path.read_bytes() + noise)
    survives(lambda: read_requests(path, "wav"))


@attack(200)
@given(st.sampled_from(["csv", "txt", "jsonl"]), st.one_of(
    st.binary(max_size=120), SYNTAX.map(str.encode),
    SYNTAX.map(lambda text: b"prompt,seed\n" + text.encode()),
))  # fmt: skip
def test_rows_of_noise(folder: Path, kind: str, content: bytes) -> None:
    path = folder / f"noise.{kind}"
    path.write_bytes(content)
    survives(lambda: read_requests(path, "wav"))


@attack(200)
@given(st.lists(st.one_of(ROW, st.dictionaries(st.sampled_from(["file", "key", "sha256"]), YAML)),
                max_size=4), st.binary(max_size=40))  # fmt: skip
def test_manifests(folder: Path, entries: list[dict[str, object]], noise: bytes) -> None:
    text = "".join(json.dumps(entry, default=str, skipkeys=True) + "\n" for entry in entries)
    (folder / "manifest.jsonl").write_bytes(text.encode() + noise)

    def read() -> None:
        for name, entry in read_manifest(folder).items():
            assert name == str(entry["file"])
            is_made(folder, entry, str(entry.get("key")))

    survives(read)
