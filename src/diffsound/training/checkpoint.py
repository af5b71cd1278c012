"""Checkpoints that are whole or not there: safetensors and JSON in a folder, renamed into place.

    RUN/step-00001000/   weights.safetensors  optimizer.safetensors  ema.safetensors  state.json
                         manifest.json (size and SHA-256 of each)

Nothing is pickled. A reader takes the newest folder whose files match its manifest.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from diffsound.files import sha256
from diffsound.training.shard import divided_like, whole

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
    """Write `RUN/step-…`; on any failure what was there before is left as it was."""
    target = run / f"step-{step:08d}"
    temporary = Path(tempfile.mkdtemp(dir=run, prefix=f".{target.name}-"))
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
            _fsync(path)
        temporary.chmod(0o755)
        if target.exists():
            # Only a checkpoint found broken on resume can be in the way: its step is made anew.
            shutil.rmtree(target)
        temporary.rename(target)
        _fsync(run)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return target


def load(folder: Path) -> Checkpoint:
    """Read a checkpoint, verified against its manifest; BrokenCheckpoint says what is wrong."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    verify(folder)
    try:
        tensors = {path.stem: load_file(path) for path in sorted(folder.glob("*.safetensors"))}
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError, SafetensorError) as error:
        raise BrokenCheckpoint(str(error)) from error
    return Checkpoint(tensors, state)


def verify(folder: Path) -> None:
    """Raise BrokenCheckpoint unless every file of the manifest is there, whole and unchanged."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise BrokenCheckpoint(f"format {manifest['format']}, this version reads {FORMAT}")
        for name, facts in manifest["files"].items():
            path = folder / name
            if path.stat().st_size != facts["bytes"] or sha256(path) != facts["sha256"]:
                raise BrokenCheckpoint(f"{name} is damaged")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BrokenCheckpoint(f"unreadable ({error})") from error


def gather(
    modules: Mapping[str, nn.Module], optimizers: Mapping[str, Any], averaged: nn.Module | None
) -> dict[str, dict[str, Tensor]]:
    """Every tensor a run is made of, named `player.key` and `player.parameter.key`.

    Sharded tensors are made whole, so then all processes must call. Settings of the optimizers are
    not among them: they follow from the config and the step.
    """
    weights: dict[str, Tensor] = {}
    moments: dict[str, Tensor] = {}
    for name, module in modules.items():
        weights |= {f"{name}.{key}": whole(value) for key, value in module.state_dict().items()}
        for index, entry in optimizers[name].state_dict()["state"].items():
            moments |= {f"{name}.{index}.{key}": whole(value) for key, value in entry.items()}
    tensors = {"weights": weights, "optimizer": moments}
    if averaged is None:
        return tensors
    return {**tensors, "ema": {k: whole(value) for k, value in averaged.state_dict().items()}}


def restore(
    found: Checkpoint,
    modules: Mapping[str, nn.Module],
    optimizers: Mapping[str, Any],
    averaged: nn.Module | None,
) -> None:
    """Put the tensors `gather` collected back where they came from."""
    for name, module in modules.items():
        _load(module, under(found.tensors["weights"], name))
        parameters = [p for group in optimizers[name].param_groups for p in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in under(found.tensors["optimizer"], name).items():
            index, _, entry = key.partition(".")
            parameter = parameters[int(index)]
            if value.shape == parameter.shape:  # a moment, not the count of steps
                value = divided_like(parameter, value)
            state.setdefault(int(index), {})[entry] = value
        groups = optimizers[name].state_dict()["param_groups"]
        optimizers[name].load_state_dict({"state": state, "param_groups": groups})
    if averaged is not None:
        _load(averaged, found.tensors["ema"])


def _load(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load whole tensors into a module that may be sharded."""
    own = module.state_dict()
    module.load_state_dict({key: divided_like(own.get(key), t) for key, t in state.items()})


def steps(run: Path) -> list[int]:
    """Steps that have a checkpoint folder, oldest first."""
    found = (_NAME.fullmatch(path.name) for path in run.iterdir() if path.is_dir())
    return sorted(int(match[1]) for match in found if match)


def folder_of(run: Path, step: int) -> Path:
    return run / f"step-{step:08d}"


def load_newest(run: Path) -> Checkpoint | None:
    """The newest readable checkpoint; broken ones are passed over with a warning each."""
    for step in reversed(steps(run)):
        folder = folder_of(run, step)
        try:
            return load(folder)
        except BrokenCheckpoint as problem:
            warnings.warn(
                f"checkpoint {folder} cannot be used ({problem}); falling back to the one before",
                stacklevel=2,
            )
    return None


def prune(run: Path, keep_last: int, best: int | None) -> None:
    """Delete all but the newest `keep_last` checkpoints and the best one."""
    for step in steps(run)[:-keep_last]:
        if step != best:
            shutil.rmtree(folder_of(run, step), ignore_errors=True)


def sweep(run: Path) -> None:
    """Remove what a killed writer left behind; only safe while holding the run's lock."""
    for path in run.glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file; the format refuses tensors with gaps or shared memory (tied
    weights), so those are copied first.
    """
    from safetensors.torch import save_file

    seen: set[int] = set()
    whole: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        address = tensor.untyped_storage().data_ptr()
        whole[name] = tensor.clone() if address in seen else tensor
        seen.add(address)
    save_file(whole, path)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix.`, without it."""
    start = f"{prefix}."
    return {key[len(start) :]: value for key, value in tensors.items() if key.startswith(start)}
