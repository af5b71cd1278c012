"""The training loop that all stages share.

    while not done:
        for each of `accumulation` batches:           stage.turns: the players' losses
            for each player's loss: backward, clip, optimizer step
        update the averaged weights
        now and then: log, validate, save a checkpoint

Randomness in a step depends on (seed, step) alone, the data on (epoch, batch), the learning rate on
the progress. So a checkpoint needs no random state, and a run that is killed and resumed ends with
exactly the weights it would have had.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor

from diffsound.data.loaders import EpochLoader
from diffsound.errors import DataError, DiffsoundError
from diffsound.training.config import TrainConfig
from diffsound.training.engine import Accelerator, Team, broadcast, send_to_device
from diffsound.training.run_files import (
    Checkpoint,
    Meter,
    ProgressLine,
    RunLog,
    load_newest,
    prune,
    save_checkpoint,
)
from diffsound.training.stage import Batch, Moment, Stage
from diffsound.weights import export_step, write_export

Ending = Literal["finished", "stopped", "early"]


@dataclass
class Position:
    """Everything about a run's progress that is not a tensor; saved with every checkpoint."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # batches done in this epoch
    seconds: float = 0.0  # spent training, over all sessions of the run
    skipped: int = 0
    best: float | None = None
    best_step: int | None = None
    stale: int = 0  # validations since the best one
    metrics: dict[str, float] = field(default_factory=dict)


class Span:
    """The length of a run in steps, epochs or minutes, whichever ends first."""

    def __init__(self, config: TrainConfig, loader: EpochLoader, accelerator: Accelerator) -> None:
        self.config, self.loader, self.accelerator = config, loader, accelerator
        self._sizes: dict[int, int] = {}  # of the epoch asked for last

    @property
    def steps(self) -> int | None:
        """Total steps, None if only the clock ends the run; assumes epochs of equal size."""
        config = self.config
        limits = [config.max_steps] if config.max_steps else []
        if config.max_epochs:
            batches = self.loader.batches_in(0) * config.max_epochs
            limits.append(max(1, batches // config.accumulation))
        return min(limits) if limits else None

    def done(self, position: Position) -> float:
        """The share of the run that is done, 0 to 1."""
        config = self.config
        shares = [0.0]
        if config.max_steps:
            shares.append(position.step / config.max_steps)
        if config.max_epochs:
            shares.append(self.epochs(position) / config.max_epochs)
        if config.max_minutes:
            seconds = torch.tensor(position.seconds, device=self.accelerator.device)
            if self.accelerator.num_processes > 1:
                seconds = self.accelerator.reduce(seconds, "mean")
            shares.append(float(seconds) / (60.0 * config.max_minutes))
        return max(shares)

    def epochs(self, position: Position) -> float:
        """Epochs done, the current one in part (a curriculum's epochs differ in size)."""
        if position.epoch not in self._sizes:
            self._sizes = {position.epoch: max(1, self.loader.batches_in(position.epoch))}
        return position.epoch + min(1.0, position.batch / self._sizes[position.epoch])

    def validation_due(self, position: Position, epochs_before: int) -> bool:
        """Whether to validate; epochs_before: whole epochs done before the last step."""
        steps, every = self.config.validate_steps, self.config.validate_epochs
        if steps and position.step % steps == 0:
            return True
        return every is not None and int(self.epochs(position)) // every > epochs_before // every


def lr_factor(config: TrainConfig, step: int, progress: float) -> float:
    """Share of the base learning rate at `step` (from 0) when `progress` (0..1) of the run is done.

    Warm-up is linear over `warmup_steps` and multiplies the schedule.
    """
    progress = min(max(progress, 0.0), 1.0)
    floor = config.final_lr
    if config.schedule == "constant":
        factor = 1.0
    elif config.schedule == "linear":
        factor = 1.0 - (1.0 - floor) * progress
    else:
        factor = floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))
    if step < config.warmup_steps:
        factor *= (step + 1) / config.warmup_steps
    return factor


class TrainingFailed(DiffsoundError):
    """The run cannot continue; its last checkpoint is kept."""


class StopSignals:
    """Turns SIGTERM and Ctrl-C into a flag, so that the loop can save before it ends.

    A second Ctrl-C interrupts at once.
    """

    def __init__(self) -> None:
        self.received = False

    def __enter__(self) -> StopSignals:
        self._old = {
            number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = True


class Trainer:
    """Trains a stage in a run folder, from its newest checkpoint if it has one."""

    def __init__(
        self, stage: Stage, config: TrainConfig, run: Path, accelerator: Accelerator
    ) -> None:
        self.stage, self.config, self.run, self.accelerator = stage, config, run, accelerator
        self.position = Position()
        self.log: RunLog | None = None
        self.line = ProgressLine(stage.kind, None, 0, quiet=True)
        self._saved_at, self._saved_step = time.monotonic(), -1
        self.team = Team(stage, config, accelerator)
        self.span = Span(config, stage.loader, accelerator)

    def fit(self, *, quiet: bool = False) -> Ending:
        """Train to the end or until told to stop; the run folder then holds a checkpoint."""
        self._resume()
        main, first = self.accelerator.is_main_process, self.position.step
        if main:
            self.log = RunLog(self.run, first, self.accelerator)
        self.line = ProgressLine(self.stage.kind, self.span.steps, first, quiet or not main)
        if first:
            self.line.say(f"resuming at step {first}")
            self._saved_step = first
        try:
            with self.line, StopSignals() as signals:
                return self._loop(signals)
        finally:
            if self.log is not None:
                self.log.close()

    def time_steps(self, warm_up: int, measured: int) -> float:
        """Measure the seconds per step by taking some; for estimates, nothing is kept."""
        batches = self._batches()
        for step in range(warm_up + measured):
            if step == warm_up:
                start = time.perf_counter()
            self._step(batches)
        return (time.perf_counter() - start) / measured

    def _loop(self, signals: StopSignals) -> Ending:
        position, config = self.position, self.config
        meter = Meter(self.accelerator)
        batches = self._batches()
        ending: Ending = "finished"
        validated = position.step
        if config.validate_first and position.step == 0:
            self._validate()
            self._save()
        mark = time.monotonic()
        while self.span.done(position) < 1.0:
            if config.patience and position.stale >= config.patience:
                ending = "early"
                self.line.say(
                    f"stopping: {self.stage.metric} has not improved for {position.stale} "
                    f"validations (best {position.best:.5g} at step {position.best_step})"
                )
                break
            epochs = int(self.span.epochs(position))
            logs = self._step(batches)
            position.step += 1
            now = time.monotonic()
            position.seconds, mark = position.seconds + now - mark, now
            meter.add(logs)
            self.line.advance(position.step)
            if position.step % config.log_steps == 0:
                self._report(meter)
            improved = False
            if self.span.validation_due(position, epochs):
                improved, validated = self._validate(), position.step
            if improved or self._checkpoint_due():
                self._save()
            if self._anyone(signals.received):
                self.line.say(f"asked to stop: saving step {position.step}")
                ending = "stopped"
                break
        watched = config.validate_steps or config.validate_epochs
        if ending == "finished" and watched and validated != position.step:
            self._validate()
        if self._anyone(self._saved_step != position.step):
            self._save(last=True)
        return ending

    def _step(self, batches: Iterator[Batch]) -> dict[str, Tensor]:
        """One optimizer step of every player; returns its logs."""
        config, accelerator, position = self.config, self.accelerator, self.position
        factor = lr_factor(config, position.step, self.span.done(position))
        lr = self.team.set_lr(factor)
        # A forward pass may change buffers (an EMA codebook, batch-norm statistics). When a step is
        # skipped because its loss is not finite, they are put back.
        buffers = self.team.buffers
        before = [buffer.clone() for buffer in buffers]
        logs: dict[str, Tensor] = {}
        ids: list[str] = []
        finite = True
        for micro in range(config.accumulation):
            batch = send_to_device(next(batches), accelerator.device, non_blocking=True)
            ids += batch.get("id", [])
            moment = Moment.at(
                config.seed, position.step, position.epoch, micro, accelerator.process_index
            )
            with accelerator.accumulate(*self.team.prepared.values()):
                for turn in self.stage.turns(batch, moment):
                    logs.update({k: torch.as_tensor(v).detach() for k, v in turn.logs.items()})
                    accelerator.backward(turn.loss)
                    if accelerator.sync_gradients:
                        norm, moved = self.team.move(turn.player)
                        logs[f"grad_norm/{turn.player}"] = norm
                        finite &= moved
                    if not finite:
                        break
        if finite:
            self.team.average(position.step + 1)
        else:
            with torch.no_grad():
                for buffer, old in zip(buffers, before, strict=True):
                    buffer.copy_(old)
            self.team.forget_gradients()
            self._count_skipped(ids)
        logs["lr"] = torch.tensor(lr)
        return logs if finite else {}

    def _count_skipped(self, ids: list[str]) -> None:
        position, limit = self.position, self.config.nan_limit
        position.skipped += 1
        named = ", ".join(ids[:8]) + (", …" if len(ids) > 8 else "")
        message = f"step {position.step}: the loss is not finite (clips {named or 'unnamed'})"
        self._log("note", {}, skipped=position.skipped, ids=ids)
        if position.skipped >= limit:
            raise TrainingFailed(
                f"{message}; gave up after {limit} such steps: look at these clips, or lower "
                "train.lr or train.clip"
            )
        self.line.say(f"{message}; step skipped ({position.skipped} of at most {limit})")

    def _validate(self) -> bool:
        """Validate the averaged product in the main process; True if it is the best so far.

        A sharded product runs in all processes together and makes no samples.
        """
        position, sharded = self.position, self.team.sharded
        metric = torch.full((), math.inf, device=self.accelerator.device)
        if self.accelerator.is_main_process or sharded:
            module = self.team.averaged.eval()
            with torch.no_grad():
                position.metrics = self.stage.validate(module)
                if not sharded:
                    self._sample(module)
            self.stage.product.train()
            metric.fill_(position.metrics[self.stage.metric])
            self._log("valid", position.metrics)
            shown = "  ".join(f"{name} {value:.5g}" for name, value in position.metrics.items())
            self.line.say(f"valid at step {position.step}: {shown}")
        if self.accelerator.num_processes > 1:
            metric = broadcast(metric)
        value = float(metric)
        if math.isfinite(value) and (position.best is None or value < position.best):
            position.best, position.best_step, position.stale = value, position.step, 0
            return True
        position.stale += 1
        return False

    def _sample(self, module: torch.nn.Module) -> None:
        """Write samples of the stage; a full disk costs these samples, not the run."""
        try:
            self.stage.sample(module, self.run / "samples" / f"step-{self.position.step:08d}")
        except (OSError, DiffsoundError) as error:
            self.line.say(f"cannot write samples: {error}; training continues")

    def _log(self, kind: str, values: Mapping[str, float], **facts: Any) -> None:
        """Log in the main process; a full disk costs these figures, not the run."""
        if self.log is None:
            return
        try:
            self.log.write(kind, self.position.step, values, **facts)
        except OSError as error:
            self.line.say(f"cannot write the log: {error.strerror or error}; training continues")

    def _save(self, last: bool = False) -> None:
        """Write a checkpoint and, if it is the one to export, the export; prune old ones.

        A full disk in the middle of a run costs this checkpoint, not the run.
        """
        position, saved = self.position, True
        self._saved_at = time.monotonic()
        main = self.accelerator.is_main_process
        if main or self.team.sharded:
            snapshot = Checkpoint(self.team.tensors(), {"position": asdict(position)})
            exported = self.team.export_state()
        if main:
            try:
                save_checkpoint(self.run, position.step, snapshot)
                if self._is_exported():
                    self._export(exported)
                prune(self.run, self.config.keep_last, position.best_step)
            except OSError as error:
                saved = False
                problem = f"cannot save step {position.step} in {self.run}: {error.strerror}"
                if last:
                    raise TrainingFailed(f"{problem}; the previous checkpoint is kept") from error
                self.line.say(f"{problem}; training continues, the previous checkpoint is kept")
        if saved:
            self._saved_step = position.step
        self.accelerator.wait_for_everyone()

    def _is_exported(self) -> bool:
        """Whether the weights of this step are the ones to export."""
        best = self.position.best_step
        return best is None or best == self.position.step or self.config.export == "last"

    def _export(self, state: Mapping[str, Tensor]) -> None:
        stage, now = self.stage, self.position
        write_export(
            self.run, stage.kind, stage.export_config(), state, step=now.step, metrics=now.metrics
        )

    def _resume(self) -> None:
        """Load the newest checkpoint; write the export if a kill prevented that."""
        found = load_newest(self.run)
        if found is None:
            return
        self.team.restore(found)
        self.position = Position(**found.state["position"])
        main = self.accelerator.is_main_process
        missing = main and self._is_exported() and export_step(self.run) != self.position.step
        if self._anyone(missing):
            state = self.team.export_state() if main or self.team.sharded else {}
            if main:
                self._export(state)

    def _batches(self) -> Iterator[Batch]:
        """Endless batches from the run's position on; the position moves with them."""
        position = self.position
        while True:
            before = position.batch
            for batch in self.stage.loader.batches(position.epoch, position.batch):
                position.batch += 1
                yield batch
            if before == position.batch == 0:
                raise DataError("the data gives no full batch; use a smaller train.batch_size")
            position.epoch, position.batch = position.epoch + 1, 0

    def _checkpoint_due(self) -> bool:
        steps, minutes = self.config.checkpoint_steps, self.config.checkpoint_minutes
        if steps and self.position.step % steps == 0:
            return True
        late = bool(minutes) and time.monotonic() - self._saved_at > 60.0 * (minutes or 0.0)
        return self._anyone(late)

    def _anyone(self, flag: bool) -> bool:
        """True in every process if `flag` is True in any of them."""
        if self.accelerator.num_processes == 1:
            return flag
        if flag:
            self.accelerator.set_trigger()
        return bool(self.accelerator.check_trigger())

    def _report(self, meter: Meter) -> None:
        values, steps_per_s = meter.read()
        config, position = self.config, self.position
        clips = config.batch_size * config.accumulation * self.accelerator.num_processes
        speed = clips * steps_per_s
        done = self.span.done(position)
        left = position.seconds * (1.0 - done) / done if done else 0.0
        facts = {"epoch": position.epoch, "seconds": round(position.seconds, 1)}
        self._log("train", {**values, "clips_per_s": speed}, **facts)
        self.line.report(position.step, values, speed, left)
