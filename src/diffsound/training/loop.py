"""The one loop all stages share.

A step: take `accumulation` batches, let the stage's players take turns at their losses, clip and
move, update the averaged weights. Around it: logs, validation, checkpoints, stopping. Accelerate
brings the device, precision, accumulation and processes.

Everything random in a step follows from (seed, step), everything about the data from
(epoch, batch), the learning rate from the progress; so a checkpoint needs no random state, and a
run killed anywhere goes on to the weights it would have had.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from diffsound.errors import DataError, DiffsoundError
from diffsound.training import checkpoint
from diffsound.training.checkpoint import Checkpoint
from diffsound.training.config import TrainConfig
from diffsound.training.ema import Ema
from diffsound.training.engine import Accelerator, broadcast
from diffsound.training.export import write_export
from diffsound.training.logs import ProgressLine, RunLog
from diffsound.training.progress import Position, Span
from diffsound.training.schedule import lr_factor
from diffsound.training.stage import Batch, Moment, Stage, Turn
from diffsound.training.watch import Meter, StopSignals

Ending = Literal["finished", "stopped", "early"]


class TrainingFailed(DiffsoundError):
    """The run cannot go on; its last checkpoint is kept."""


class Trainer:
    """Trains a stage in a run folder, from its newest checkpoint if it has one."""

    def __init__(
        self, stage: Stage, config: TrainConfig, run: Path, accelerator: Accelerator
    ) -> None:
        self.stage, self.config, self.run, self.accelerator = stage, config, run, accelerator
        self.position = Position()
        self.log: RunLog | None = None
        self.line = ProgressLine(stage.kind, None, 0, quiet=True)
        self.modules = {name: player.module for name, player in stage.players.items()}
        for module in self.modules.values():
            module.to(accelerator.device)
        self.ema = Ema(stage.product, config.ema_decay) if config.ema_decay else None
        if config.compile:
            stage.compile()
        scale = accelerator.num_processes * config.batch_size if config.lr_per_clip else 1
        self.base_lr = {name: player.lr * scale for name, player in stage.players.items()}
        self.optimizers: dict[str, Any] = {}
        prepared: dict[str, nn.Module] = {}
        for name, player in stage.players.items():
            optimizer = torch.optim.AdamW(
                player.parameter_groups(), self.base_lr[name], player.betas, fused=True
            )
            prepared[name], self.optimizers[name] = accelerator.prepare(player.module, optimizer)
        stage.attach(prepared, accelerator.device)
        self.prepared = prepared
        self.span = Span(config, stage.loader, accelerator)

    def fit(self, *, quiet: bool = False) -> Ending:
        """Train to the end, or until told to stop; the run folder then holds a checkpoint."""
        self._resume()
        main = self.accelerator.is_main_process
        first = self.position.step
        if main:
            self.log = RunLog(self.run, first, self.config.tensorboard)
        self.line = ProgressLine(self.stage.kind, self.span.steps, first, quiet or not main)
        if first:
            self.line.say(f"resuming at step {first}")
        self._saved_at = time.monotonic()
        self._saved_step = first if first else -1
        try:
            with self.line, StopSignals() as signals:
                ending = self._loop(signals)
        finally:
            if self.log is not None:
                self.log.close()
        return ending

    def time_steps(self, warm_up: int, measured: int) -> float:
        """Seconds a step takes, by taking some; for estimates, the run is not kept."""
        batches = self._batches()
        for _ in range(warm_up):
            self._step(batches)
        start = time.perf_counter()
        for _ in range(measured):
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
        for name, optimizer in self.optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = self.base_lr[name] * factor
        # A forward pass may move buffers (an EMA codebook, batch-norm statistics): a step that is
        # skipped for a loss that is not finite must not leave them poisoned.
        buffers = [b for module in self.modules.values() for b in module.buffers()]
        before = [buffer.clone() for buffer in buffers]
        logs: dict[str, Tensor] = {}
        ids: list[str] = []
        finite = True
        for micro in range(config.accumulation):
            batch = next(batches)
            ids += batch.get("id", [])
            batch = {key: self._to_device(value) for key, value in batch.items()}
            moment = Moment.at(
                config.seed, position.step, position.epoch, micro, accelerator.process_index
            )
            with accelerator.accumulate(*self.prepared.values()):
                for turn in self.stage.turns(batch, moment):
                    logs.update({k: torch.as_tensor(v).detach() for k, v in turn.logs.items()})
                    accelerator.backward(turn.loss)
                    if accelerator.sync_gradients:
                        norm, moved = self._move(turn)
                        logs[f"grad_norm/{turn.player}"] = norm
                        finite &= moved
                    if not finite:
                        break
        if finite:
            if self.ema is not None:
                self.ema.update(self.stage.product, position.step + 1)
        else:
            with torch.no_grad():
                for buffer, old in zip(buffers, before, strict=True):
                    buffer.copy_(old)
            for optimizer in self.optimizers.values():
                optimizer.zero_grad()
            self._count_skipped(ids)
        logs["lr"] = torch.tensor(factor * next(iter(self.base_lr.values())))
        return logs if finite else {}

    def _move(self, turn: Turn) -> tuple[Tensor, bool]:
        """Clip a player's gradients and step its optimizer, unless something is not finite.

        Gradients are the same in all processes by now, so all of them decide alike.
        """
        accelerator, optimizer = self.accelerator, self.optimizers[turn.player]
        parameters = self.modules[turn.player].parameters()
        norm = accelerator.clip_grad_norm_(parameters, self.config.clip or math.inf)
        norm = torch.as_tensor(norm).detach()
        # Under fp16 an infinite norm is the loss scaler finding its scale; it skips the step.
        scaling = accelerator.scaler is not None and bool(turn.loss.isfinite())
        moved = scaling or bool(norm.isfinite())
        if moved:
            optimizer.step()
        optimizer.zero_grad()
        return norm, moved

    def _count_skipped(self, ids: list[str]) -> None:
        position, limit = self.position, self.config.nan_limit
        position.skipped += 1
        named = ", ".join(ids[:8]) + (", …" if len(ids) > 8 else "")
        message = f"step {position.step}: the loss is not finite (clips {named or 'unnamed'})"
        if self.log is not None:
            self.log.write("note", position.step, {}, skipped=position.skipped, ids=ids)
        if position.skipped >= limit:
            raise TrainingFailed(
                f"{message}; gave up after {limit} such steps: look at these clips, or lower "
                "train.lr or train.clip"
            )
        self.line.say(f"{message}; step skipped ({position.skipped} of at most {limit})")

    def _validate(self) -> bool:
        """Measure the averaged product in the main process; True if it is the best so far."""
        position = self.position
        metric = torch.full((), math.inf, device=self.accelerator.device)
        if self.accelerator.is_main_process:
            module = self.averaged
            module.eval()
            with torch.no_grad():
                position.metrics = self.stage.validate(module)
                self.stage.sample(module, self.run / "samples" / f"step-{position.step:08d}")
            self.stage.product.train()
            metric.fill_(position.metrics[self.stage.metric])
            if self.log is not None:
                self.log.write("valid", position.step, position.metrics)
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

    @property
    def averaged(self) -> nn.Module:
        return self.ema.module if self.ema is not None else self.stage.product

    def _save(self, last: bool = False) -> None:
        """Write a checkpoint and, when it is its turn, the export; prune old ones.

        A full disk in the middle of a run costs this checkpoint, not the run.
        """
        position = self.position
        self._saved_at = time.monotonic()
        if self.accelerator.is_main_process:
            best = position.best_step
            try:
                checkpoint.save(self.run, position.step, self._snapshot())
                wanted = best is None or best == position.step or self.config.export == "last"
                if wanted:
                    write_export(
                        self.run,
                        self.stage.kind,
                        self.stage.export_config(),
                        self.stage.export_state(self.averaged),
                        step=position.step,
                        metrics=position.metrics,
                    )
            except OSError as error:
                problem = f"cannot save step {position.step} in {self.run}: {error.strerror}"
                if last:
                    raise TrainingFailed(f"{problem}; the checkpoint before it is kept") from error
                self.line.say(f"{problem}; going on, the checkpoint before it is kept")
            else:
                self._saved_step = position.step
                checkpoint.prune(self.run, self.config.keep_last, best)
        else:
            self._saved_step = position.step
        self.accelerator.wait_for_everyone()

    def _snapshot(self) -> Checkpoint:
        averaged = self.ema.module if self.ema is not None else None
        scaler = self.accelerator.scaler
        return Checkpoint(
            checkpoint.gather(self.modules, self.optimizers, averaged),
            {
                "position": asdict(self.position),
                "scaler": scaler.state_dict() if scaler is not None else None,
            },
        )

    def _resume(self) -> None:
        found = checkpoint.load_newest(self.run)
        if found is None:
            return
        averaged = self.ema.module if self.ema is not None else None
        checkpoint.restore(found, self.modules, self.optimizers, averaged)
        self.position = Position(**found.state["position"])
        if self.accelerator.scaler is not None and found.state["scaler"]:
            self.accelerator.scaler.load_state_dict(found.state["scaler"])

    def _batches(self) -> Iterator[Batch]:
        """Batches without end from the run's position, which moves with them."""
        position = self.position
        while True:
            before = position.batch
            for batch in self.stage.loader.batches(position.epoch, position.batch):
                position.batch += 1
                yield batch
            if before == position.batch == 0:
                raise DataError("the data gives no batch; use a smaller train.batch_size")
            position.epoch, position.batch = position.epoch + 1, 0

    def _checkpoint_due(self) -> bool:
        steps, minutes = self.config.checkpoint_steps, self.config.checkpoint_minutes
        if steps and self.position.step % steps == 0:
            return True
        late = bool(minutes) and time.monotonic() - self._saved_at > 60.0 * (minutes or 0.0)
        return self._anyone(late)

    def _anyone(self, flag: bool) -> bool:
        """True in every process if it is in any of them."""
        if self.accelerator.num_processes == 1:
            return flag
        if flag:
            self.accelerator.set_trigger()
        return bool(self.accelerator.check_trigger())

    def _to_device(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(self.accelerator.device, non_blocking=True)
        return value

    def _report(self, meter: Meter) -> None:
        values, seconds, steps = meter.read()
        config, position = self.config, self.position
        clips = config.batch_size * config.accumulation * self.accelerator.num_processes
        speed = clips * steps / seconds
        done = self.span.done(position)
        left = position.seconds * (1.0 - done) / done if done else 0.0
        if self.log is not None:
            facts = {"epoch": position.epoch, "seconds": round(position.seconds, 1)}
            self.log.write("train", position.step, {**values, "clips_per_s": speed}, **facts)
        self.line.report(position.step, values, speed, left)
