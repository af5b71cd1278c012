"""What a run tells: a JSONL log, TensorBoard curves, and a progress line."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from diffsound.files import atomic_write

LOG = "log.jsonl"


def read_log(run: Path) -> list[dict[str, Any]]:
    """Every whole line of a run's log; a line cut short by a kill is passed over."""
    path = run / LOG
    if not path.exists():
        return []
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entries.append(json.loads(line))
        except ValueError:
            continue
    return entries


class RunLog:
    """Appends to RUN/log.jsonl and, where it is installed, to TensorBoard files."""

    def __init__(self, run: Path, resume_step: int, tensorboard: bool) -> None:
        # Steps after the checkpoint will be made again; their old lines would appear twice.
        kept = [entry for entry in read_log(run) if entry["step"] <= resume_step]
        with atomic_write(run / LOG) as path:
            path.write_text("".join(json.dumps(entry) + "\n" for entry in kept), encoding="utf-8")
        self._stream = (run / LOG).open("a", encoding="utf-8")
        self._board = _tensorboard(run, resume_step) if tensorboard else None

    def write(self, kind: str, step: int, values: Mapping[str, float], **facts: Any) -> None:
        """One line: kind ("train", "valid" or "note"), step, further facts and the values."""
        entry = {"kind": kind, "step": step, **facts, **values}
        # NaN is not JSON; null keeps the file readable by everything.
        entry = {key: None if value != value else value for key, value in entry.items()}
        self._stream.write(json.dumps(entry) + "\n")
        self._stream.flush()
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        self._stream.close()
        if self._board is not None:
            self._board.close()


def _tensorboard(run: Path, resume_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(run / "tensorboard"), purge_step=resume_step + 1)


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, step: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=step)

    def report(self, step: int, values: Mapping[str, float], speed: float, left: float) -> None:
        """Show the figures of the last steps; speed in clips/s, left in seconds."""
        shown = "  ".join(f"{name} {value:.4g}" for name, value in list(values.items())[:6])
        facts = f"{speed:.1f} clips/s  {_clock(left)} left  {shown}"
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


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
