"""The committed tables: every one runs from its config at tiny size, and its header's commands are
ones the command line takes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diffsound.cli.evaluate import app
from diffsound.config import load_config
from diffsound.evaluation.paper_tables import paper_table
from diffsound.evaluation.tables import TableConfig
from diffsound.model.bundle import Bundle
from diffsound.training.decoder import DecoderRun
from diffsound.training.runs import STAGE_CLASSES

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "configs" / "tables"
NUMBERS = range(2, 8)


@pytest.fixture(scope="module")
def workshop(
    tiny_folder: Path, tiny_ar_bundle: Bundle, sound_data: Path, classifier_run: Path,
    captioner_run: Path, tmp_path_factory: pytest.TempPathFactory,
) -> Path:  # fmt: skip
    """A folder as the tiny configs expect it; every bundle is one of two."""
    folder = tmp_path_factory.mktemp("workshop")
    ar = tiny_ar_bundle.save_pretrained(folder / "tiny-ar")
    for name in ("runs", "bundles"):
        (folder / name).mkdir()
    (folder / "data").symlink_to(sound_data)
    (folder / "runs" / "classifier").symlink_to(classifier_run)
    (folder / "runs" / "captioner").symlink_to(captioner_run)
    for name in {model for number in NUMBERS for model in paper_table(number).models}:
        model = ar if name.startswith("ar") else tiny_folder
        (folder / "bundles" / name).symlink_to(model)
    return folder


@pytest.mark.parametrize("number", NUMBERS)
def test_a_table_from_its_config(
    number: int, workshop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows are measured; run again, a lost cell is made anew and no other."""
    monkeypatch.chdir(workshop)
    monkeypatch.setenv("PATH", "")  # without Java words are split in this process, and faster
    config = TABLES / "tiny" / f"table-{number}.yaml"
    words = ["table", str(number), "--config", str(config), "--out", str(tmp_path)]

    def made() -> dict[str, int]:
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        return {path.stem: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}

    first = made()
    assert set(first) == {row.id for row in paper_table(number).rows}
    rows = json.loads((tmp_path / f"table-{number}.json").read_text(encoding="utf-8"))["rows"]
    assert all(found["FID"]["value"] is not None for found in rows.values())
    for suffix in ("md", "csv", "png"):
        assert (tmp_path / f"table-{number}.{suffix}").stat().st_size
    lost = next(iter(first))
    (tmp_path / "cells" / f"{lost}.json").unlink()
    second = made()
    assert [name for name in first if second[name] != first[name]] == [lost]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("folder", [TABLES, TABLES / "tiny"], ids=["small", "tiny"])
def test_every_row_has_its_bundle(number: int, folder: Path) -> None:
    config = load_config(TableConfig, folder / f"table-{number}.yaml")
    assert set(config.bundles) == set(paper_table(number).models)


def _commands(path: Path) -> list[list[str]]:
    """The command lines of a config's header."""
    lines = re.findall(r"^#   (.*)$", path.read_text(encoding="utf-8"), flags=re.M)
    text = "\n".join(lines).replace("\\\n", " ")
    return [shlex.split(line) for line in text.splitlines() if line.startswith("diffsound ")]


@pytest.mark.parametrize("number", NUMBERS)
def test_the_commands_of_the_header_are_right(number: int) -> None:
    """Training commands name a stage and a config that take every setting; bundles are built from
    runs that are trained, under a name the table knows."""
    path = TABLES / f"table-{number}.yaml"
    commands = _commands(path)
    assert commands[0][1:4] == ["evaluate", "table", str(number)]
    assert ROOT / commands[0][5] == path
    bundles = load_config(TableConfig, path).bundles
    trained = set()
    for words in (words for words in commands if words[1] == "train"):
        overrides = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        config = load_config(
            STAGE_CLASSES[words[2]][0], ROOT / words[words.index("--config") + 1], overrides
        )
        assert config.stage == words[2]
        trained.add(words[words.index("--run") + 1])
    for words in (words for words in commands if words[1] == "bundle"):
        assert words[3] in bundles.values()
        assert words[words.index("--decoder") + 1] in trained


def test_pre_training_makes_what_training_goes_on_from() -> None:
    before, after = (
        load_config(DecoderRun, ROOT / "configs" / "small" / f"{name}.yaml", ["codec=RUN"])
        for name in ("pretrain", "decoder")
    )
    assert before.decoder == after.decoder
