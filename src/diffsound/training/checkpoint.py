"""Checkpoints: safetensors and JSON in a folder, renamed into place when it is complete.

    RUN/step-00001000/   weights.safetensors  optimizer.safetensors  ema.safetensors  state.json
                         manifest.json (size and SHA-256 of each)

Nothing is pickled. `load_newest` takes the newest folder whose files match its manifest.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from diffsound.files import TEMPORARY, read_json, sha256, sync
from diffsound.weights import save_tensors

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


def save(run: Path, step: int, checkpoint: Checkpoint) -> Path:
    """Write `RUN/step-…`; a failure leaves the folder as it was."""
    target = run / f"step-{step:08d}"
    temporary = Path(tempfile.mkdtemp(dir=run, prefix=f"{TEMPORARY}{target.name}-"))
    try:
        for stem, tensors in checkpoint.tensors.items():
            save_tensors(tensors, temporary / f"{stem}.safetensors")
        _write_json(temporary / STATE, dict(checkpoint.state))
        files = {
            path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
            for path in sorted(temporary.iterdir())
        }
        _write_json(temporary / MANIFEST, {"format": FORMAT, "step": step, "files": files})
        for path in (*temporary.iterdir(), temporary):
            sync(path)
        temporary.chmod(0o755)
        if target.exists():
            # Only a checkpoint found damaged on resume can be here; this one replaces it.
            shutil.rmtree(target)
        temporary.rename(target)
        sync(run)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return target


def load(folder: Path) -> Checkpoint:
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


def steps(run: Path) -> list[int]:
    """Steps that have a checkpoint folder, oldest first."""
    found = (_NAME.fullmatch(path.name) for path in run.iterdir() if path.is_dir())
    return sorted(int(match[1]) for match in found if match)


def folder_of(run: Path, step: int) -> Path:
    return run / f"step-{step:08d}"


def load_newest(run: Path) -> Checkpoint | None:
    """The newest readable checkpoint; each damaged one is skipped with a warning."""
    for step in reversed(steps(run)):
        folder = folder_of(run, step)
        try:
            return load(folder)
        except BrokenCheckpoint as problem:
            warnings.warn(
                f"checkpoint {folder} is not usable ({problem}); using the one before it",
                stacklevel=2,
            )
    return None


def prune(run: Path, keep_last: int, best: int | None) -> None:
    """Delete all but the newest `keep_last` checkpoints and the best one."""
    for step in steps(run)[:-keep_last]:
        if step != best:
            shutil.rmtree(folder_of(run, step), ignore_errors=True)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix.`, without the prefix."""
    start = f"{prefix}."
    return {key[len(start) :]: value for key, value in tensors.items() if key.startswith(start)}
