"""The loop on a stage small enough to compute by hand: two players on a line fit."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from diffsound.training import run_files
from diffsound.training.config import TrainConfig
from diffsound.training.loop import Trainer, TrainingFailed
from diffsound.training.run_files import read_log
from diffsound.training.stage import Batch, Moment, Player, Stage, Turn
from diffsound.weights import load_export


class Numbers:
    """Five batches an epoch, each a pure function of (epoch, batch)."""

    def __init__(self, size: int, broken: int | None = None) -> None:
        self.size, self.broken = size, broken

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        for index in range(start, 5):
            generator = torch.Generator().manual_seed(1000 * epoch + index)
            x = torch.randn(self.size, 3, generator=generator)
            if index == self.broken:
                x[0, 0] = float("nan")
            yield {"x": x, "id": [f"clip-{epoch}-{index}-{item}" for item in range(self.size)]}

    def batches_in(self, epoch: int) -> int:
        return 5


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += x.mean().detach()
        return self.linear(x)


class LineStage(Stage):
    kind = "line"
    metric = "distance"

    def __init__(self, config: TrainConfig, broken: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(config.seed)
        self.players = {
            "line": Player.of(Line(), config),
            "rival": Player(nn.Linear(1, 1), 0.05, (0.5, 0.9)),
        }
        self.loader = Numbers(config.batch_size, broken)
        self.scores = iter([3.0, 2.0, *[2.5] * 100])
        self.at_turn: Any = lambda moment: None

    def turns(self, batch: Batch, moment: Moment) -> Iterator[Turn]:
        self.at_turn(moment)
        # Both kinds of randomness a stage may use, so that resuming has to restore both.
        noise = torch.rand((), generator=moment.generator) + torch.rand(())
        made = self.prepared["line"](batch["x"])
        target = batch["x"].sum(1, keepdim=True)
        loss = (made - target).square().mean() * (1 + 0.1 * noise)
        yield Turn("line", loss, {"loss": loss})
        rival = (self.prepared["rival"](made.detach()) - 1).square().mean()
        yield Turn("rival", rival, {"rival": rival})

    def validate(self, module: nn.Module) -> dict[str, float]:
        torch.rand(7)  # must not disturb the run
        return {"distance": next(self.scores)}

    def export_config(self) -> dict[str, Any]:
        return {"inputs": 3}


def settings(**changes: Any) -> TrainConfig:
    base = {"max_steps": 12, "batch_size": 4, "lr": 0.01, "log_steps": 3, "log": "none"}
    return TrainConfig(**{**base, "checkpoint_minutes": None, "validate_steps": None, **changes})


def trainer(run: Path, stage: LineStage, config: TrainConfig) -> Trainer:
    run.mkdir(exist_ok=True)
    return Trainer(stage, config, run, Accelerator(gradient_accumulation_steps=config.accumulation))


def fit(run: Path, broken: int | None = None, **changes: Any) -> tuple[str, Trainer]:
    config = settings(**changes)
    made = trainer(run, LineStage(config, broken), config)
    return made.fit(quiet=True), made


def tensors(made: Trainer) -> dict[str, Tensor]:
    stored = made.team.tensors()
    return {f"{file}/{k}": v for file, group in stored.items() for k, v in group.items()}


def assert_identical(one: Trainer, other: Trainer) -> None:
    first, second = tensors(one), tensors(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def test_the_first_step_equals_adam_computed_by_hand(tmp_path: Path) -> None:
    """Adam's first step is lr · sign(gradient), whatever the gradient's size."""
    config = settings(max_steps=1, schedule="constant", clip=None)
    stage = LineStage(config)
    weight, bias = (value.detach().clone() for value in stage.product.parameters())
    trainer(tmp_path / "run", stage, config).fit(quiet=True)
    x = next(Numbers(4).batches(0))["x"]
    gradient = (x @ weight.T + bias - x.sum(1, keepdim=True)).T @ x  # up to a positive factor
    moved = stage.product.linear.weight.detach() - weight
    torch.testing.assert_close(moved, -0.01 * gradient.sign(), rtol=1e-3, atol=1e-6)


def test_an_interrupted_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """Stopped by SIGTERM in the middle of an epoch, then resumed: the same bits."""
    _, whole = fit(tmp_path / "whole", validate_steps=4)
    config = settings(validate_steps=4)
    stage = LineStage(config)
    stage.at_turn = lambda moment: moment.step == 6 and os.kill(os.getpid(), signal.SIGTERM)
    first = trainer(tmp_path / "run", stage, config)
    assert first.fit(quiet=True) == "stopped"
    assert run_files.checkpoint_steps(tmp_path / "run")[-1] == 7
    ending, resumed = fit(tmp_path / "run", validate_steps=4)
    assert ending == "finished"
    assert resumed.position.step == 12
    assert (resumed.position.epoch, resumed.position.batch) == (2, 2)
    assert_identical(whole, resumed)


def test_log_has_each_step_once_after_a_resume(tmp_path: Path) -> None:
    fit(tmp_path / "run", max_steps=9, checkpoint_steps=6, keep_last=5, schedule="constant")
    shutil.rmtree(tmp_path / "run" / "step-00000009")
    with (tmp_path / "run" / "log.jsonl").open("a") as stream:
        stream.write('{"kind": "train", "st')  # what a kill leaves
    fit(tmp_path / "run", schedule="constant")
    assert [entry["step"] for entry in read_log(tmp_path / "run")] == [3, 6, 9, 12]


def test_accumulation_equals_the_whole_batch(tmp_path: Path) -> None:
    """Two micro-steps of 4 give the gradients of their 8 items together."""

    class Plain(LineStage):
        def turns(self, batch: Batch, moment: Moment) -> Iterator[Turn]:
            target = batch["x"].sum(1, keepdim=True)
            yield Turn("line", (self.prepared["line"](batch["x"]) - target).square().mean())

    class Pairs(Numbers):
        def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
            halves = list(super().batches(epoch))
            for one, two in zip(halves[:-1:2], halves[1::2], strict=True):
                yield {"x": torch.cat([one["x"], two["x"]])}

    halved = settings(max_steps=2, accumulation=2)
    apart = Plain(halved)
    trainer(tmp_path / "apart", apart, halved).fit(quiet=True)
    joined = settings(max_steps=2)
    together = Plain(joined)
    together.loader = Pairs(4)
    trainer(tmp_path / "together", together, joined).fit(quiet=True)
    torch.testing.assert_close(apart.product.linear.weight, together.product.linear.weight)


def test_broken_batches_are_skipped_and_leave_no_trace(tmp_path: Path) -> None:
    _, made = fit(tmp_path / "run", broken=2, max_steps=8)
    assert made.position.skipped == 2
    assert made.position.step == 8
    assert all(value.isfinite().all() for value in tensors(made).values())
    notes = [entry for entry in read_log(tmp_path / "run") if entry["kind"] == "note"]
    assert [note["ids"][0] for note in notes] == ["clip-0-2-0", "clip-1-2-0"]


def test_too_many_broken_batches_end_the_run_and_are_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailed, match=r"clip-1-2-0.*gave up after 2"):
        fit(tmp_path / "run", broken=2, nan_limit=2)


def test_the_last_and_the_best_checkpoints_are_kept(tmp_path: Path) -> None:
    run = tmp_path / "run"
    _, made = fit(run, validate_steps=2, checkpoint_steps=2, keep_last=2)
    assert made.position.best == 2.0
    assert run_files.checkpoint_steps(run) == [4, 10, 12]
    kind, config, state = load_export(run)
    assert (kind, config) == ("line", {"inputs": 3})
    best = run_files.load_checkpoint(run / "step-00000004").tensors["ema"]
    assert state.keys() == best.keys()
    assert all(torch.equal(state[name], best[name]) for name in best)


def test_a_run_that_stopped_early_stays_stopped(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ending, made = fit(run, validate_steps=1, patience=3)
    assert (ending, made.position.step) == ("early", 5)
    ending, made = fit(run, validate_steps=1, patience=3)
    assert (ending, made.position.step) == ("early", 5)


def test_a_full_disk_loses_a_checkpoint_but_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import safetensors.torch as files

    real = files.save_file
    full = {"now": False}

    def limited(content: dict[str, Tensor], path: Path) -> None:
        real(content, path)
        if full["now"] and Path(path).stem == "optimizer":
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "save_file", limited)
    run = tmp_path / "run"
    config = settings(checkpoint_steps=3, keep_last=1)
    stage = LineStage(config)
    stage.at_turn = lambda moment: full.update(now=moment.step >= 4)
    with pytest.raises(TrainingFailed, match="No space left on device"):
        trainer(run, stage, config).fit(quiet=True)
    assert run_files.checkpoint_steps(run) == [3]
    run_files.verify(run / "step-00000003")
    assert not list(run.glob(".tmp-*"))
    full["now"] = False
    _, resumed = fit(run, checkpoint_steps=3)
    assert_identical(fit(tmp_path / "whole")[1], resumed)


def test_learning_rate_per_clip_scales_with_the_batch(tmp_path: Path) -> None:
    fit(tmp_path / "run", lr=1e-3, lr_per_clip=True, schedule="constant", max_steps=3)
    (entry,) = read_log(tmp_path / "run")
    assert entry["lr"] == pytest.approx(4e-3)


def test_a_run_limited_by_the_clock_ends(tmp_path: Path) -> None:
    ending, made = fit(tmp_path / "run", max_steps=None, max_minutes=0.002)
    assert ending == "finished"
    assert made.position.seconds >= 0.12


def test_validation_runs_after_whole_epochs(tmp_path: Path) -> None:
    """Five batches an epoch, two a step: epochs end within steps 3, 5 and 8."""
    run = tmp_path / "run"
    _, made = fit(run, max_steps=9, accumulation=2, validate_epochs=1)
    valid = [entry["step"] for entry in read_log(run) if entry["kind"] == "valid"]
    assert valid == [3, 5, 8, 9]
    assert made.position.best == 2.0


def test_epochs_of_different_sizes_are_all_run(tmp_path: Path) -> None:
    """A curriculum's epochs differ; progress counts epochs, not the first one's batches."""

    class Growing(Numbers):
        def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
            yield from list(super().batches(epoch))[start : epoch + 1]

        def batches_in(self, epoch: int) -> int:
            return epoch + 1

    config = settings(max_steps=None, max_epochs=4)
    stage = LineStage(config)
    stage.loader = Growing(4)
    made = trainer(tmp_path / "run", stage, config)
    assert made.fit(quiet=True) == "finished"
    assert (made.position.step, made.position.epoch, made.position.batch) == (10, 3, 4)


def test_max_epochs_ends_the_run(tmp_path: Path) -> None:
    _, made = fit(tmp_path / "run", max_steps=None, max_epochs=3)
    assert (made.position.step, made.position.epoch, made.position.batch) == (15, 2, 5)
