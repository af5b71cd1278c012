"""The settings every stage shares do what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from diffsound.config import load_config
from diffsound.errors import ConfigError
from diffsound.training.codec import CodecRun
from diffsound.training.config import TrainConfig
from diffsound.training.engine import Ema
from diffsound.training.loop import lr_factor
from diffsound.training.run_files import read_log
from diffsound.training.runs import changes, train
from diffsound.training.stage import Player

TINY = Path(__file__).parents[2] / "configs" / "tiny"


def factors(steps: int = 10, **settings: object) -> list[float]:
    config = TrainConfig.model_validate({"max_steps": steps, "final_lr": 0.1, **settings})
    return [lr_factor(config, step, step / steps) for step in range(steps + 1)]


def test_the_constant_schedule_keeps_the_learning_rate() -> None:
    assert factors(schedule="constant") == [1.0] * 11


def test_the_linear_schedule_falls_linearly() -> None:
    assert factors(schedule="linear") == pytest.approx([1 - 0.09 * n for n in range(11)])


def test_the_cosine_schedule_falls_along_a_cosine() -> None:
    made = factors(schedule="cosine")
    assert (made[0], made[5], made[10]) == pytest.approx((1.0, 0.55, 0.1))
    assert made == sorted(made, reverse=True)


def test_warm_up_is_linear() -> None:
    made = factors(schedule="constant", warmup_steps=4)
    assert made[:6] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])


def test_only_matrices_decay() -> None:
    module = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Conv1d(4, 4, 3))
    frozen = nn.Linear(4, 4).requires_grad_(False)
    player = Player(nn.ModuleList([module, frozen]), 1e-3, (0.9, 0.99), weight_decay=0.3)
    decayed, kept = player.parameter_groups()
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.3, 0.0)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    assert [names[id(p)] for p in decayed["params"]] == ["1.weight", "3.weight"]
    assert [names[id(p)] for p in kept["params"]] == [
        "0.weight", "1.bias", "2.weight", "2.bias", "3.bias",
    ]  # fmt: skip


def test_the_average_is_an_exponential_one_and_buffers_are_copied() -> None:
    module = nn.BatchNorm1d(1)
    ema = Ema(module, decay=0.5)
    expected = 1.0
    for step, value in enumerate([3.0, 5.0, -2.0, 7.0, 7.0], 1):
        nn.init.constant_(module.weight, value)
        module.running_mean.fill_(value)
        ema.update(module, step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
    assert float(ema.module.weight) == pytest.approx(expected)
    assert float(ema.module.running_mean) == 7.0  # statistics are averages already


def test_frozen_parameters_keep_their_bits_in_the_average() -> None:
    module = nn.Linear(2, 1)
    nn.init.constant_(module.bias, -0.0)
    module.bias.requires_grad_(False)
    ema = Ema(module, decay=0.5)
    ema.update(module, 1)
    assert torch.equal(ema.module.bias.signbit(), torch.tensor([True]))


def test_gradients_are_clipped(prepared: Path, tmp_path: Path) -> None:
    """Adam's step forgets a gradient's size, unless it is clipped to less than Adam's epsilon."""
    moved = {}
    for clip in ("null", "1e-12"):
        settings = [f"train.clip={clip}", "train.max_steps=1", "train.log=none"]
        run = tmp_path / clip
        train("vocoder", TINY / "vocoder.yaml", prepared, run, settings, quiet=True)
        moved[clip] = _weights(run)
    start = ["train.lr=1e-30", "train.max_steps=1", "train.log=none"]
    train("vocoder", TINY / "vocoder.yaml", prepared, tmp_path / "still", start, quiet=True)
    still = _weights(tmp_path / "still")
    free, clipped = ((moved[clip] - still).abs().max() for clip in ("null", "1e-12"))
    assert free > 1e-3
    assert clipped < 1e-2 * free


def _weights(run: Path) -> torch.Tensor:
    from diffsound.weights import load_export

    return torch.cat([tensor.flatten() for _, tensor in sorted(load_export(run)[2].items())])


def test_tensorboard_gets_the_figures_of_the_log(prepared: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    train("vocoder", TINY / "vocoder.yaml", prepared, run, ["train.max_steps=4"], quiet=True)
    board = EventAccumulator(str(run / "tensorboard"))
    board.Reload()
    drawn = {event.step: event.value for event in board.Scalars("train/loss")}
    logged = {e["step"]: e["loss"] for e in read_log(run) if e["kind"] == "train"}
    assert len(logged) == 4
    assert drawn == pytest.approx(logged)
    assert {"valid/mel_l1", "train/lr", "train/clips_per_s"} <= set(board.Tags()["scalars"])


def test_a_resumed_tensorboard_has_each_step_once(prepared: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    for steps in (2, 4):
        settings = [f"train.max_steps={steps}", "train.log_steps=1", "train.log=tensorboard"]
        train("classifier", TINY / "classifier.yaml", prepared, run, settings, quiet=True)
    board = EventAccumulator(str(run / "tensorboard"))
    board.Reload()
    assert [event.step for event in board.Scalars("train/loss")] == [1, 2, 3, 4]


def test_wandb_gets_the_figures_offline_and_a_resumed_run_keeps_its_entry(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = tmp_path / "run"
    for steps in (2, 4):
        settings = [f"train.max_steps={steps}", "train.log_steps=1", "train.log=wandb"]
        train("classifier", TINY / "classifier.yaml", prepared, run, settings, quiet=True)
    wandb.teardown()  # its service writes the files when it ends
    entry = json.loads((run / "tracker.json").read_text())["wandb"]
    first, second = sorted((run / "wandb").glob("offline-run-*/*.wandb"))
    assert first.stem == second.stem == f"run-{entry}"
    for file in (first, second):
        content = file.read_bytes()
        assert b"train/loss" in content
        assert b"valid/error" in content
        assert b"train.batch_size" in content


def test_a_tracker_that_is_not_installed_is_named(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"train\.log=mlflow needs mlflow: pip install mlflow"):
        train("codec", TINY / "codec.yaml", prepared, tmp_path, ["train.log=mlflow"], quiet=True)
    assert not list(tmp_path.iterdir())


def test_a_run_of_another_version_resumes_unless_a_setting_did_something() -> None:
    config = load_config(CodecRun, TINY / "codec.yaml")
    now = config.model_dump(mode="json")
    assert changes(now, config) == []
    older = json.loads(json.dumps(now))
    del older["train"]["export"], older["codec"]["quantizer"], older["text_dropout"]
    older["augment"] |= {"roll": False, "speed_probability": 0.5}
    given = {key for key, *_ in changes(older, config)}
    assert "text_dropout" not in given
    assert "train.export" in given  # the tiny config's is not the default
    assert not any("roll" in key or "probability" in key for key in given)
    older["augment"]["roll"] = True
    assert ("augment.roll", True, None) in changes(older, config)
    other = config.model_copy(update={"frames": 7})
    assert changes(now, other) == [("frames", config.frames, 7)]
