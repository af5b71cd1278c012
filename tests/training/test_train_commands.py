"""`diffsound train` and `diffsound bundle build`, as typed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

import pytest
import torch

from cli_support import typed
from diffsound.data.shards import PreparedData
from diffsound.model.bundle import Bundle
from diffsound.model.checks import verify
from diffsound.training.assemble import load_codec
from diffsound.training.config import STAGES
from diffsound.training.runs import STAGE_CLASSES

TINY = Path(__file__).parents[2] / "configs" / "tiny"


def test_commands_lead_from_a_codec_to_a_bundle(
    prepared: Path, tiny_codec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "decoder", tmp_path / "bundle"
    train = ("train", "decoder", "--config", TINY / "decoder.yaml", "--data", prepared)
    chosen = ("--set", f"codec={tiny_codec}", "--set", "train.max_steps=1")
    assert typed(*train, "--run", run, *chosen) == 0
    assert "step 1/1" in capsys.readouterr().err
    assert typed("train", "plot", run) == 0
    assert (run / "curves.png").stat().st_size > 1000
    build = ("bundle", "build", out, "--codec", tiny_codec, "--decoder", run)
    options = ("--default", "guidance_scale=3", "--name", "mine", "--coverage", prepared)
    assert typed(*build, *options) == 0
    bundle = Bundle.from_pretrained(out)
    assert bundle.config.defaults.guidance_scale == 3
    assert bundle.coverage is not None
    assert sorted(bundle.coverage.captions) == ["a noise", "a tone"]
    assert verify(out) == []
    assert typed(*build) == 2
    assert "already holds a bundle" in capsys.readouterr().err
    assert typed(*build[:2], tmp_path / "other", *build[3:], "--default", "guidance=3") == 2
    assert "unknown key 'guidance'; did you mean 'guidance_scale'?" in capsys.readouterr().err
    assert typed(*build[:2], tmp_path / "other", *build[3:], "--captioner", tiny_codec) == 2
    assert "holds a codec, not a captioner" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_a_bundle_can_be_built_from_the_stages_of_others(
    tiny_folder: Path, tiny_bundle: Bundle, tiny_codec: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    build = ("bundle", "build", tmp_path / "new", "--decoder", tiny_folder, "--no-half")
    assert typed(*build, "--codec", tiny_folder, "--vocoder", "griffin_lim") == 0
    made = Bundle.from_pretrained(tmp_path / "new")
    assert made.config.decoder.model == tiny_bundle.config.decoder.model
    assert made.config.text_encoder == tiny_bundle.config.text_encoder
    assert made.config.vocoder != tiny_bundle.config.vocoder
    for name, tensor in tiny_bundle.decoder.state_dict().items():
        assert torch.equal(tensor, made.decoder.state_dict()[name]), name
    capsys.readouterr()
    other = ("bundle", "build", tmp_path / "other", "--decoder", tiny_folder)
    assert typed(*other, "--codec", tiny_codec) == 2
    assert "give the codec it was trained on" in capsys.readouterr().err


def test_tokenize_takes_a_codec_run(prepared: Path, tiny_codec: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(prepared, tmp_path / "data", ignore=shutil.ignore_patterns("tokens"))
    assert typed("data", "tokenize", copy, "--codec", tiny_codec, "--engine", "serial") == 0
    data = PreparedData.open(copy)
    assert data.tokens(load_codec(tiny_codec)[2]).of(0).shape[:2] == (1, 4)


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_has_a_command_and_a_config(stage: str) -> None:
    assert typed("train", stage, "--help") == 0
    assert STAGE_CLASSES[stage][0].model_fields["stage"].annotation == Literal[stage]


def test_dry_run_estimates_and_writes_nothing(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ("--config", TINY / "codec.yaml", "--data", prepared)
    before = sorted(prepared.rglob("*"))
    assert typed("train", "codec", *config, "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "codec", "discriminator", "state", "peak", "step", "whole",
    ]  # fmt: skip
    assert "12 steps" in lines[-1]
    assert sorted(prepared.rglob("*")) == before
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--run", "RUN", "--set", "train.batchsize=3"), "unknown key 'train.batchsize'"),
        (("--run", "RUN", "--set", "train.lr"), "an override is written key=value"),
        ((), "give --run DIR"),
        (("--run", "RUN", "--data", "nowhere"), "nowhere is not a prepared folder"),
        (("--run", "RUN", "--config", "none.yaml"), "cannot read the config none.yaml"),
        (("--run", "RUN", "--set", "stage=vocoder"), "'stage'"),
    ],
)
def test_wrong_arguments_end_in_one_line(
    prepared: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    run = tmp_path / "run"
    given = [str(run) if argument == "RUN" else argument for argument in arguments]
    config = ("--config", TINY / "codec.yaml", "--data", prepared)
    assert typed("train", "codec", *config, *given) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not run.exists()
