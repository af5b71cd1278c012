"""`diffsound evaluate` as it is typed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from diffsound.cli.evaluate import app
from diffsound.errors import DataError, InputError
from diffsound.evaluation.paper_tables import paper_table
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
