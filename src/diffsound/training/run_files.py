"""What a run writes to its folder: checkpoints, figures, curves, pictures and sounds.

RUN/step-00001000/   weights.safetensors  optimizer.safetensors  ema.safetensors  state.json
                     manifest.json (size and SHA-256 of each)
RUN/log.jsonl        figures, one line each, also sent to the tracker of `train.log`

A checkpoint is renamed into place when it is complete. Nothing is pickled.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import time
import uuid
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import yaml
from torch import Tensor

from diffsound.audio.io import write_audio
from diffsound.audio.spectrogram import spectrogram_image
from diffsound.config import flat
from diffsound.errors import ConfigError, InputError, MissingExtraError
from diffsound.files import (
    TEMPORARY,
    atomic_folder,
    atomic_write,
    parse_json,
    read_json,
    sha256,
    write_text,
)
from diffsound.weights import save_tensors

if TYPE_CHECKING:
    from accelerate import Accelerator

FORMAT = 1
MANIFEST = "manifest.json"
STATE = "state.json"
_NAME = re.compile(r"step-(\d{8,})")


class BrokenCheckpoint(Exception):
    """A checkpoint folder that does not hold what its manifest says."""


@dataclass(frozen=True)
class Checkpoint:
    """tensors: file stem -> name -> tensor; state: everything else, as JSON."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]


def save_checkpoint(run: Path, step: int, checkpoint: Checkpoint) -> Path:
    """Write `RUN/step-…`; a failure leaves the folder as it was."""
    # A checkpoint of this step can only be one found damaged on resume; it is replaced.
    with atomic_folder(folder_of(run, step)) as folder:
        for stem, tensors in checkpoint.tensors.items():
            save_tensors(tensors, folder / f"{stem}.safetensors")
        _write_json(folder / STATE, dict(checkpoint.state))
        files = {
            path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
            for path in sorted(folder.iterdir())
        }
        _write_json(folder / MANIFEST, {"format": FORMAT, "step": step, "files": files})
    return folder_of(run, step)


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint and verify it; BrokenCheckpoint says what is wrong."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    verify(folder)
    try:
        tensors = {path.stem: load_file(path) for path in sorted(folder.glob("*.safetensors"))}
        state = read_json(folder / STATE)
    except (OSError, ValueError, SafetensorError) as error:
        raise BrokenCheckpoint(str(error)) from error
    if not isinstance(state, dict):
        raise BrokenCheckpoint(f"{STATE} is damaged")
    return Checkpoint(tensors, state)


def verify(folder: Path) -> None:
    """Raise BrokenCheckpoint unless every file of the manifest is present and unchanged."""
    try:
        manifest = read_json(folder / MANIFEST)
        if manifest["format"] != FORMAT:
            raise BrokenCheckpoint(f"format {manifest['format']}, this version reads {FORMAT}")
        for name, facts in manifest["files"].items():
            path = folder / name
            if path.stat().st_size != facts["bytes"] or sha256(path) != facts["sha256"]:
                raise BrokenCheckpoint(f"{name} is damaged")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BrokenCheckpoint(f"unreadable ({error})") from error


def checkpoint_steps(run: Path) -> list[int]:
    """Steps that have a checkpoint folder, oldest first."""
    found = (_NAME.fullmatch(path.name) for path in run.iterdir() if path.is_dir())
    return sorted(int(match[1]) for match in found if match)


def folder_of(run: Path, step: int) -> Path:
    return run / f"step-{step:08d}"


def load_newest(run: Path) -> Checkpoint | None:
    """The newest readable checkpoint; each damaged one is skipped with a warning."""
    for step in reversed(checkpoint_steps(run)):
        folder = folder_of(run, step)
        try:
            return load_checkpoint(folder)
        except BrokenCheckpoint as problem:
            warnings.warn(
                f"checkpoint {folder} is not usable ({problem}); using the one before it",
                stacklevel=2,
            )
    return None


def prune(run: Path, keep_last: int, best: int | None) -> None:
    """Delete all but the newest `keep_last` checkpoints and the best one."""
    for step in checkpoint_steps(run)[:-keep_last]:
        if step != best:
            # Renamed first: a kill in between must not leave half a checkpoint.
            folder = folder_of(run, step)
            shutil.rmtree(folder.rename(run / f"{TEMPORARY}{folder.name}"), ignore_errors=True)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix.`, without the prefix."""
    start = f"{prefix}."
    return {key[len(start) :]: value for key, value in tensors.items() if key.startswith(start)}


LOG = "log.jsonl"
TRACKER = "tracker.json"  # which entry of wandb or MLflow is this run's, for resuming


def read_log(run: Path) -> list[dict[str, Any]]:
    """Every complete line of a run's log; one cut short by a kill or damaged is skipped."""
    path = run / LOG
    if not path.exists():
        return []
    entries = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = parse_json(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("step"), int):
            entries.append(entry)
    return entries


class RunLog:
    """Appends to RUN/log.jsonl and sends the same figures to the tracker of `train.log`.

    For the main process alone.
    """

    def __init__(self, run: Path, resume_step: int, accelerator: Accelerator) -> None:
        # Steps after the checkpoint will be repeated; their old lines would appear twice.
        kept = [entry for entry in read_log(run) if entry["step"] <= resume_step]
        write_text(run / LOG, "".join(json.dumps(entry) + "\n" for entry in kept))
        self._stream = (run / LOG).open("a", encoding="utf-8")
        self._accelerator = accelerator
        start_tracker(accelerator, run, resume_step)

    def write(self, kind: str, step: int, values: Mapping[str, float], **facts: Any) -> None:
        """One line: kind ("train", "valid" or "note"), step, further facts and the values."""
        entry = {"kind": kind, "step": step, **facts, **values}
        # NaN is not JSON; null keeps the file readable by everything.
        entry = {key: None if value != value else value for key, value in entry.items()}
        self._stream.write(json.dumps(entry) + "\n")
        self._stream.flush()
        if values:
            self._accelerator.log({f"{kind}/{name}": v for name, v in values.items()}, step=step)

    def close(self) -> None:
        with suppress(OSError):  # a full disk, which was reported when a line did not fit
            self._stream.close()
        for tracker in self._accelerator.trackers:
            tracker.finish()


def start_tracker(accelerator: Accelerator, run: Path, resume_step: int) -> None:
    """Begin the run's entry in TensorBoard, wandb or MLflow, or continue the one it has."""
    if not accelerator.log_with:
        return
    tracker = str(accelerator.log_with[0])
    # TensorBoard's name is its folder in the run; the others' is the project they file it under.
    if tracker == "tensorboard":
        purged = {tracker: {"purge_step": resume_step + 1}}
        accelerator.init_trackers(tracker, init_kwargs=purged)
        return
    try:
        entry = read_json(run / TRACKER).get(tracker)
    except (OSError, ValueError, AttributeError):
        entry = None
    settings = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    options: dict[str, Any]
    if tracker == "wandb":
        entry = entry or uuid.uuid4().hex[:8]
        options = {"wandb": {"id": entry, "name": run.name, "dir": str(run), "resume": "allow"}}
    else:
        options = {"mlflow": {"run_id": entry, "run_name": run.name}}
    # What was stored once with MLflow cannot be stored again with another value.
    config = None if tracker == "mlflow" and entry else flat(settings)
    try:
        accelerator.init_trackers("diffsound", config, options)
    except Exception as error:  # every tracker has its own: no key, no server, a wrong address
        message = " ".join(str(error).split())
        raise ConfigError(f"train.log={tracker} does not work: {message}") from error
    if tracker == "mlflow":
        entry = accelerator.get_tracker("mlflow", unwrap=True).info.run_id
    write_text(run / TRACKER, json.dumps({tracker: entry}) + "\n")


class Meter:
    """Averages logged scalars over the steps since it was last read, and over processes."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.logged: dict[str, list[Tensor]] = {}
        self.steps, self.since = 0, time.monotonic()

    def add(self, logs: dict[str, Tensor]) -> None:
        self.steps += 1
        for name, value in logs.items():
            value = value.to(self.accelerator.device, torch.float32)
            self.logged.setdefault(name, []).append(value)

    def read(self) -> tuple[dict[str, float], float]:
        """The means and the steps per second since the last reading."""
        speed = self.steps / max(time.monotonic() - self.since, 1e-9)
        values: dict[str, float] = {}
        if self.logged:
            means = torch.stack([torch.stack(of).mean() for of in self.logged.values()])
            if self.accelerator.num_processes > 1:
                means = self.accelerator.reduce(means, "mean")
            values = dict(zip(self.logged, means.tolist(), strict=True))
        self.logged, self.steps, self.since = {}, 0, time.monotonic()
        return values, speed


class ProgressLine:
    """Steps, clips/s, time left and the loss: a live bar on a terminal, plain lines elsewhere."""

    def __init__(self, title: str, total: int | None, done: int, quiet: bool = False) -> None:
        self._total = total
        self._quiet = quiet
        self._bar: Any = None
        if not quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[facts]}"),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(title, total=total, completed=done, facts="")

    def __enter__(self) -> ProgressLine:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, step: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=step)

    def report(self, step: int, values: Mapping[str, float], speed: float, left: float) -> None:
        """Show the figures of the last steps; speed in clips/s, left in seconds."""
        shown = "  ".join(f"{name} {value:.4g}" for name, value in list(values.items())[:6])
        facts = f"{speed:.1f} clips/s  {timedelta(seconds=int(left))} left  {shown}"
        if self._bar is not None:
            self._bar.update(self._task, completed=step, facts=facts)
        else:
            self.say(f"step {step}{f'/{self._total}' if self._total else ''}  {facts}")

    def say(self, text: str) -> None:
        """Print a line (above the bar, if there is one)."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        else:
            print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def plot_run(run: str | Path, target: str | Path | None = None) -> Path:
    """Draw every logged figure of a run over its steps, training and validation together."""
    run = Path(run)
    curves: dict[str, dict[str, tuple[list[int], list[float]]]] = {}
    for entry in read_log(run):
        if entry["kind"] not in ("train", "valid"):
            continue
        for name, value in entry.items():
            if name in ("kind", "step", "epoch", "seconds") or not isinstance(value, int | float):
                continue
            steps, values = curves.setdefault(name, {}).setdefault(entry["kind"], ([], []))
            steps.append(entry["step"])
            values.append(value)
    if not curves:
        raise InputError(f"{run} has no figures to plot yet (log.jsonl is missing or empty)")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "train") from None
    columns = min(3, len(curves))
    rows = math.ceil(len(curves) / columns)
    figure = Figure(figsize=(4.6 * columns, 2.8 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (name, kinds) in enumerate(sorted(curves.items()), start=1):
        axes = figure.add_subplot(rows, columns, place)
        for kind, (steps, values) in kinds.items():
            axes.plot(steps, values, label=kind, marker="o" if kind == "valid" else None, ms=3)
        axes.set_title(name, fontsize=9)
        axes.grid(alpha=0.3)
        if len(kinds) > 1:
            axes.legend(fontsize=8)
    target = Path(target) if target is not None else run / "curves.png"
    with atomic_write(target) as temporary:
        figure.savefig(temporary, dpi=110)
    return target


def write_mel_pair(path: Path, original: Tensor, made: Tensor) -> None:
    """Write a PNG with the original mel [n_mels, L] above the one made from it."""
    from PIL import Image

    pictures = [spectrogram_image(mel.float().cpu().numpy()) for mel in (original, made)]
    width, height = pictures[0].size
    gap = 4
    sheet = Image.new("RGB", (width, 2 * height + gap), "white")
    for row, picture in enumerate(pictures):
        sheet.paste(picture, (0, row * (height + gap)))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        sheet.save(temporary)


def write_sound(path: Path, wave: Tensor, sample_rate: int) -> None:
    """Write wave [samples] as a WAV; samples that are not finite become silence."""
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = np.nan_to_num(wave.float().cpu().numpy(), nan=0.0, posinf=0.0, neginf=0.0)
    write_audio(path, samples, sample_rate, overwrite=True)
