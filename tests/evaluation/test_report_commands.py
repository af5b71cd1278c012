"""`diffsound evaluate` as it is typed."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from diffsound.cli.evaluate import app
from diffsound.errors import DataError, InputError
from diffsound.evaluation import spice
from diffsound.evaluation.paper_tables import paper_table
from diffsound.evaluation.ptb import java
from diffsound.evaluation.tables import TableConfig

DOCS = Path(__file__).parents[2] / "docs" / "evaluation.md"


def evaluate(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, [str(word) for word in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_from_bundle_to_listeners(
    tiny_folder: Path, sound_data: Path, classifier_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "eval"
    shown = evaluate(
        "run", tiny_folder, "--data", sound_data, "--out", out, "--classifier", classifier_run,
        "--split", "valid", "--clips", "2", "--seconds", "0.5", "--no-copies",
        "--set", "num_inference_steps=2",
    )  # fmt: skip
    assert re.search(r"^generated: FID not available, .*KL \d", shown, flags=re.M)
    assert (out / "report.html").exists()
    evaluate("figure", tmp_path / "six.png", "--run", f"ours={out}", "--texts", "2")
    assert (tmp_path / "six.png").exists()
    evaluate("listen", "build", tmp_path / "mos", "--run", f"ours={out}", "--texts", "1")
    with pytest.raises(DataError, match="nobody has rated"):
        evaluate("listen", "report", tmp_path / "mos")
    with pytest.raises(InputError, match="NAME=DIR"):
        evaluate("figure", tmp_path / "six.png", "--run", str(out))


@pytest.fixture
def spice_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of jars, and a `java` that answers for SPICE and is the real one otherwise."""
    jars, programs = tmp_path / "jars", tmp_path / "bin"
    for folder in (jars, programs):
        folder.mkdir()
    for name in spice.JARS:
        (jars / name).touch()
    program = programs / "java"
    program.write_text(FAKE_JAVA.format(python=sys.executable, java=java(), main=spice.MAIN_CLASS))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return jars


FAKE_JAVA = """#!{python}
import json, os, sys
words = sys.argv[1:]
if "{main}" not in words:
    os.execv("{java}", ["{java}", *words])
questions = json.load(open(words[words.index("{main}") + 1]))
with open(words[words.index("-out") + 1], "w") as answers:
    scores = {{"All": {{"f": 0.25}}}}
    json.dump([{{"image_id": q["image_id"], "scores": scores}} for q in questions], answers)
"""


@pytest.mark.skipif(java() is None, reason="SPICE needs Java")
def test_spice_with_its_jars(
    tiny_folder: Path, sound_data: Path, classifier_run: Path, captioner_run: Path,
    spice_machine: Path, tmp_path: Path,
) -> None:  # fmt: skip
    words = (
        "run", tiny_folder, "--data", sound_data, "--out", tmp_path / "eval", "--classifier",
        classifier_run, "--captioner", captioner_run, "--split", "valid", "--clips", "2",
        "--seconds", "0.5", "--no-copies", "--set", "num_inference_steps=2",
    )  # fmt: skip
    with pytest.raises(InputError, match=r"has no stanford-corenlp-3\.6\.0\.jar"):
        evaluate(*words, "--corenlp", tmp_path / "bin")
    assert not (tmp_path / "eval").exists()
    shown = evaluate(*words, "--corenlp", spice_machine)
    assert len(re.findall(r"SPICE 0\.25", shown)) == 4
    assert "SPICE not available" in evaluate(*words)
    config = tmp_path / "table.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "data": str(sound_data), "split": "valid", "clips": 2, "seconds": 0.5,
                "classifier": str(classifier_run), "captioner": str(captioner_run),
                "bundles": {"plain": str(tiny_folder)}, "allow_few": True, "resamples": 0,
            }
        )
    )  # fmt: skip
    table = ("table", "6", "--config", config, "--out", tmp_path / "table")
    evaluate(*table)
    written = tmp_path / "table" / "table-6.md"
    assert "needs the Stanford CoreNLP 3.6.0 jars" in written.read_text(encoding="utf-8")
    evaluate(*table, "--corenlp", spice_machine)
    assert re.search(r"\| 0\.25 \(", written.read_text(encoding="utf-8"))


def test_a_picture_of_the_steps(tiny_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "steps.png"
    evaluate("steps", "a dog", out, "-b", tiny_folder, "--steps", "2", "--duration", "0.5")
    assert out.exists()


def test_the_documented_table_config_is_valid() -> None:
    text = DOCS.read_text(encoding="utf-8")
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", text, flags=re.M | re.S)
    config = TableConfig.model_validate(yaml.safe_load(example))
    assert set(config.bundles) == set(paper_table(3).models)
    for number in range(2, 8):
        (row,) = re.findall(rf"^\| {number} \|.*$", text, flags=re.M)
        assert set(re.findall(r"`([^`]+)`", row)) == set(paper_table(number).models)
