"""Configs, files of prompts and manifests from strangers: read, or refused in one line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from attack_support import attack, survives
from diffsound.batch.manifest import is_made, read_manifest
from diffsound.batch.rows import read_requests
from diffsound.config import load_config
from diffsound.data.published import audioset_labels
from diffsound.data.shards import PreparedData, read_fields, read_sidecar
from diffsound.data.tables import SourceReport, read_jsonl
from diffsound.evaluation.ears import load_ear
from diffsound.evaluation.listening import Key, Ratings, keep_ratings, parse_ratings, read_key
from diffsound.evaluation.recognise import read_prompts
from diffsound.evaluation.sets import check_same, read_examples
from diffsound.files import sha256
from diffsound.training.codec import CodecRun
from diffsound.training.run_files import (
    Checkpoint,
    folder_of,
    load_newest,
    read_log,
    save_checkpoint,
)
from diffsound.weights import read_header

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


HOSTILE_JSON = {
    "deep list": b"[" * 10**5,
    "deep objects": b'{"a": ' * 400 + b"1" + b"}" * 400,
    "huge number": b'{"format": 1' + b"0" * 400 + b"}",
    "longer than int() takes": b'{"format": 1' + b"0" * 5000 + b"}",
    "not UTF-8": b'{"id": "\xff\xfe"}',
    "another kind": b'[1, null, "x"]',
    "empty": b"",
}
JSON_READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "examples of an evaluation": ("examples.json", read_examples),
    "settings of an evaluation": ("settings.json", lambda folder: check_same(folder, {"seed": 1})),
    "listening test": ("key.json", read_key),
    "ratings": (
        "x.json",
        lambda folder: parse_ratings(
            (folder / "x.json").read_bytes(), Key(test="t", loudness=-23.0, clips={})
        ),
    ),
    "ear": ("ear.json", lambda folder: load_ear(folder / "ear.onnx")),
    "index of prepared data": ("index.json", PreparedData.open),
    "sidecar": ("a.json", lambda folder: read_sidecar(folder / "a.tar")),
    "clip": ("a.tar", lambda folder: read_fields(
        folder / "a.tar", (0, (folder / "a.tar").stat().st_size))),
    "captions": ("c.jsonl", lambda folder: list(
        read_jsonl(folder / "c.jsonl", SourceReport()))),
    "ontology": ("ontology.json", lambda folder: audioset_labels(folder, SourceReport())),
    "log of a run": ("log.jsonl", read_log),
    "header of an export": ("config.json", read_header),
}  # fmt: skip


@pytest.mark.parametrize("kind", [*HOSTILE_JSON, "ten gigabytes"])
def test_hostile_ratings_on_disk_are_refused_and_stay(kind: str, tmp_path: Path) -> None:
    """The listening server answers such an error with one line, and keeps serving."""
    path = tmp_path / "ratings" / "x.json"
    path.parent.mkdir()
    path.write_bytes(HOSTILE_JSON.get(kind, b""))
    if kind == "ten gigabytes":
        os.truncate(path, 10**10)
    size = path.stat().st_size
    with pytest.raises((OSError, ValueError)):
        keep_ratings(tmp_path, Ratings(test="t", listener="x", ratings={}))
    assert path.stat().st_size == size


@pytest.mark.parametrize("kind", HOSTILE_JSON)
@pytest.mark.parametrize("reader", JSON_READERS)
def test_hostile_json(reader: str, kind: str, tmp_path: Path) -> None:
    name, read = JSON_READERS[reader]
    (tmp_path / "ear.onnx").write_bytes(b"")
    (tmp_path / name).write_bytes(HOSTILE_JSON[kind])
    survives(lambda: read(tmp_path))


@pytest.mark.parametrize("kind", HOSTILE_JSON)
@pytest.mark.parametrize("name", ["manifest.json", "state.json"])
def test_hostile_checkpoints_are_passed_over(name: str, kind: str, tmp_path: Path) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, step, Checkpoint({}, {"step": step}))
    folder = folder_of(tmp_path, 2)
    (folder / name).write_bytes(HOSTILE_JSON[kind])
    if name == "state.json":  # a stranger's manifest agrees with it
        manifest = json.loads((folder / "manifest.json").read_text())
        facts = {"bytes": len(HOSTILE_JSON[kind]), "sha256": sha256(folder / name)}
        (folder / "manifest.json").write_text(json.dumps(manifest | {"files": {name: facts}}))
    with pytest.warns(UserWarning, match="is not usable"):
        found = load_newest(tmp_path)
    assert found is not None
    assert found.state == {"step": 1}
