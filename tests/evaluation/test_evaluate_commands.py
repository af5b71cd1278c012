"""`diffsound evaluate` as it is typed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import spice_stub
from diffsound.cli.evaluate import app
from diffsound.errors import DataError, InputError
from diffsound.evaluation.ears import EarConfig, patches
from diffsound.evaluation.paper_tables import paper_table
from diffsound.evaluation.tables import TableConfig

DOCS = Path(__file__).parents[2] / "docs" / "evaluation.md"


def evaluate(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, [str(word) for word in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_a_bundle_is_scored_drawn_and_put_before_listeners(
    tiny_folder: Path, sound_data: Path, classifier_run: Path, captioner_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "eval"
    shown = evaluate(
        "run", tiny_folder, "--data", sound_data, "--out", out, "--classifier", classifier_run,
        "--captioner", captioner_run, "--caption-metrics", "bleu_1,scene_graph",
        "--split", "valid", "--clips", "2", "--seconds", "0.5", "--no-copies",
        "--set", "num_inference_steps=2",
    )  # fmt: skip
    assert re.search(r"^generated: FID not available, .*KL \d.*BLEU-1 \d", shown, flags=re.M)
    assert "CIDEr" not in shown
    assert (out / "report.html").exists()
    evaluate("figure", tmp_path / "six.png", "--run", f"ours={out}", "--texts", "2")
    assert (tmp_path / "six.png").exists()
    evaluate("listen", "build", tmp_path / "mos", "--run", f"ours={out}", "--texts", "1")
    with pytest.raises(DataError, match="nobody has rated"):
        evaluate("listen", "report", tmp_path / "mos")
    with pytest.raises(InputError, match="NAME=DIR"):
        evaluate("figure", tmp_path / "six.png", "--run", str(out))


@pytest.mark.skipif(spice_stub.JAVAC is None, reason="a SPICE is compiled: needs a JDK")
def test_spice_runs_with_its_jars(
    tiny_folder: Path, sound_data: Path, classifier_run: Path, captioner_run: Path, tmp_path: Path
) -> None:
    jars = spice_stub.build(tmp_path / "spice")
    words = (
        "run", tiny_folder, "--data", sound_data, "--out", tmp_path / "eval", "--classifier",
        classifier_run, "--captioner", captioner_run, "--split", "valid", "--clips", "2",
        "--seconds", "0.5", "--no-copies", "--set", "num_inference_steps=2",
    )  # fmt: skip
    with pytest.raises(InputError, match=r"has no stanford-corenlp-3\.6\.0\.jar"):
        evaluate(*words, "--corenlp", tmp_path)
    assert not (tmp_path / "eval").exists()
    shown = evaluate(*words, "--corenlp", jars)
    assert len(re.findall(r"SPICE \d", shown)) == 4
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
    evaluate(*table, "--corenlp", jars)
    assert re.search(r"\| \S+ \(0\.103\)", written.read_text(encoding="utf-8"))


def test_the_steps_are_drawn(tiny_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "steps.png"
    evaluate("steps", "a dog", out, "-b", tiny_folder, "--steps", "2", "--duration", "0.5")
    assert out.exists()


def test_the_documented_ear_is_valid() -> None:
    (example,) = re.findall(r"^```json\n(.*?)^```$", DOCS.read_text("utf-8"), flags=re.M | re.S)
    config = EarConfig.model_validate_json(example)
    (part,) = patches(config, np.zeros(15600, np.float32))
    assert (1, *part.shape) == config.shape


def test_the_documented_table_config_is_valid() -> None:
    text = DOCS.read_text(encoding="utf-8")
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", text, flags=re.M | re.S)
    config = TableConfig.model_validate(yaml.safe_load(example))
    assert set(config.bundles) == set(paper_table(3).models)
    for number in range(2, 8):
        (row,) = re.findall(rf"^\| {number} \|.*$", text, flags=re.M)
        assert set(re.findall(r"`([^`]+)`", row)) == set(paper_table(number).models)


def test_loops_are_compared_with_sounds_that_just_end(tmp_path: Path, tiny_folder: Path) -> None:
    figures = tmp_path / "seams.json"
    head, *rows = evaluate(
        "loops", tiny_folder, "--prompt", "rain", "--prompt", "wind", "--seconds", "1",
        "--json", figures,
    ).splitlines()  # fmt: skip
    assert head.split() == ["worst", "level", "spectrum", "dip", "jump", "plain"]
    for row, told in zip(json.loads(figures.read_text()), rows, strict=True):
        assert told.split() == [row["prompt"], *(f"{row[name]:.2f}" for name in head.split())]
        assert row["worst"] == max(row[name] for name in ("level", "spectrum", "dip", "jump"))
