"""The decoders of tables 4 to 6: every command is one that runs, every row's bundle is made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from cli_support import check_parses
from diffsound.config import load_config
from diffsound.training.decoder import DecoderRun
from make_model import ROOT, run_steps
from table_models import MODELS, main, recipe

STEPS = list(recipe(Path("data"), Path("codec"), Path("work"), ["train.max_steps=5"]))


def test_every_command_is_one_the_command_line_takes() -> None:
    for step in STEPS:
        check_parses(list(step.command))


@pytest.mark.parametrize(
    "step", [s for s in STEPS if s.command[0] == "train"], ids=lambda s: s.name
)
def test_every_decoder_is_one_its_config_allows(step: object) -> None:
    command = list(step.command)  # type: ignore[attr-defined]
    config = command[command.index("--config") + 1]
    overrides = [command[at + 1] for at, word in enumerate(command) if word == "--set"]
    run = load_config(DecoderRun, config, overrides)
    assert run.decoder.width == 192
    assert run.train.max_steps == 5


def test_they_are_the_rows_of_the_tables() -> None:
    made = {f"runs/tables/bundles/{model.name}" for model in MODELS if not model.pretraining}
    asked: set[str] = set()
    for number in (4, 5, 6):
        path = ROOT / "configs" / "tables" / f"table-{number}.yaml"
        asked |= set(yaml.safe_load(path.read_text(encoding="utf-8"))["bundles"].values())
    assert asked == made


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    ran: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> int:
        ran.append(command)
        return 0 if len(ran) < 3 else 7

    steps = list(recipe(tmp_path, tmp_path, tmp_path, []))
    (tmp_path / "scenes").mkdir()
    (tmp_path / "scenes" / "index.json").write_text("{}")
    assert run_steps(steps, run, lambda line: None) == 7
    assert [command[0] for command in ran] == ["train", "bundle", "train"]


def test_nothing_to_learn_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path / "none"), "--codec", str(tmp_path)])
    assert "there is nothing at" in capsys.readouterr().err
