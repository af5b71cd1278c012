"""Weights on disk: safetensors only, whole or refused.

A trained stage hands on a folder, RUN/export, with config.json and model.safetensors; a bundle
carries its judges in folders of the same form.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from diffsound.errors import BundleError, DiffsoundError
from diffsound.files import atomic_folder, atomic_write, open_regular, read_json, sha256

FORMAT = 1
CONFIG = "config.json"
MODEL = "model.safetensors"

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file; every failure of the disk is an OSError.

    All weights are written here: safetensors reports a full disk with an exception of its own,
    which code that expects an OSError would miss. The format refuses tensors with gaps or shared
    memory (tied weights), so those are copied first.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    seen: set[int] = set()
    whole: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        address = tensor.untyped_storage().data_ptr()
        whole[name] = tensor.clone() if address in seen else tensor
        seen.add(address)
    try:
        save_file(whole, path)
    except SafetensorError as error:
        code = re.search(r"\(os error (\d+)\)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error


def save_weights(
    path: str | Path, state: Mapping[str, Tensor], dtype: torch.dtype | None = None
) -> None:
    """Write a state dict; floating tensors are stored as `dtype` when it is given."""
    path = Path(path)
    try:
        with atomic_write(path) as temporary:
            save_tensors(cast(state, dtype) if dtype else state, temporary)
    except OSError as error:
        raise BundleError(f"cannot write {path}: {error.strerror or error}") from error


def cast(state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The state dict with its floating tensors as `dtype`."""
    return {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in state.items()
    }


def load_weights(path: str | Path) -> dict[str, Tensor]:
    """Read a safetensors file; half-precision tensors come back as float32."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(path)
    try:
        open_regular(path).close()  # load_file would wait for a pipe
        state = load_file(path)
    except FileNotFoundError:
        raise BundleError(f"the weights file {path} is missing") from None
    except (SafetensorError, OSError) as error:
        said = " ".join(str(error).split())  # it quotes the file, line breaks included
        raise BundleError(f"{path} is damaged or not a safetensors file: {said}") from error
    half = (torch.float16, torch.bfloat16)
    return {name: t.float() if t.dtype in half else t for name, t in state.items()}


class _Unfilled(TorchFunctionMode):
    """Skips drawing random numbers into meta tensors.

    It would change nothing, and torch would load its compiler for it, which takes seconds.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        drawing = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_)
        tensor: Any = args[0] if args else (kwargs or {}).get("tensor")
        if func in drawing and tensor.is_meta:
            return tensor
        return func(*args, **(kwargs or {}))


def build_with(build: Callable[[], ModuleT], state: Mapping[str, Tensor], source: str) -> ModuleT:
    """Build a module and load its weights, strictly.

    It is first sketched on the meta device, which allocates nothing: a config that promises more
    than its weights hold is refused before it can take memory.
    """
    try:
        with torch.device("meta"), _Unfilled():
            expected = build().state_dict()
    except DiffsoundError:
        raise
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise BundleError(f"{source}: its configuration describes no network: {reason}") from error
    check_shapes(expected, state, source)
    module = build()
    module.load_state_dict(dict(state))
    return module


def load_into(module: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Load strictly; a missing, unexpected or mis-shaped tensor is named in one line."""
    check_shapes(module.state_dict(), state, source)
    module.load_state_dict(dict(state))


def check_shapes(expected: Mapping[str, Tensor], state: Mapping[str, Tensor], source: str) -> None:
    """Refuse a missing, unexpected or mis-shaped tensor."""
    for name, tensor in expected.items():
        if name not in state:
            raise BundleError(f"{source}: the tensor '{name}' is missing")
        if state[name].shape != tensor.shape:
            raise BundleError(
                f"{source}: '{name}' has the shape {tuple(state[name].shape)}, "
                f"the configuration needs {tuple(tensor.shape)}"
            )
    unexpected = sorted(set(state) - set(expected))
    if unexpected:
        raise BundleError(f"{source}: the tensor '{unexpected[0]}' is not part of this model")


def fingerprint(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> str:
    """A short name for a model's exact behaviour: its config and its weights in half precision.

    Half precision, so that a model keeps its name when it is stored as fp16.
    """
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for name in sorted(state):
        tensor = state[name].detach().cpu()
        if tensor.is_floating_point():
            tensor = tensor.half()
        digest.update(name.encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def write_export(
    run: Path,
    kind: str,
    config: Mapping[str, Any],
    state: Mapping[str, Tensor],
    *,
    step: int,
    metrics: Mapping[str, float],
) -> Path:
    """Replace RUN/export; the old one stays until the new one is complete."""
    header = {"kind": kind, "step": step, "metrics": dict(metrics), "config": dict(config)}
    return _write(run / "export", header, state)


def copy_export(
    run: str | Path, kind: str, target: Path, dtype: torch.dtype = torch.float16
) -> Path:
    """Write a run's export to the folder `target`, its floating tensors as `dtype`."""
    _, state = load_export_of(run, kind)
    return _write(target, read_header(run), cast(state, dtype))


def read_header(run: str | Path) -> dict[str, Any]:
    """What a run's export says of itself: kind, step, metrics, config."""
    folder = _folder(run)
    try:
        content: dict[str, Any] = read_json(folder / CONFIG)
        if content["format"] != FORMAT:
            raise BundleError(
                f"{folder} has export format {content['format']}, this version reads {FORMAT}; "
                "update diffsound"
            )
        return {key: content[key] for key in ("kind", "step", "metrics", "sha256", "config")}
    except FileNotFoundError:
        raise _unfinished(run, CONFIG) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(f"the export in {folder} cannot be read: {error}") from error


def export_step(run: Path) -> int | None:
    """The step of a run's export; None if it has none that can be read."""
    try:
        return int(read_header(run)["step"])
    except BundleError:
        return None


def load_export(run: str | Path) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
    """Read a run's export (the run folder or its export folder): (kind, config, state dict)."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    header, path = read_header(run), _folder(run) / MODEL
    try:
        if sha256(path) != header["sha256"]:
            raise BundleError(f"{path} is damaged; export the run again")
        return header["kind"], header["config"], load_file(path)
    except FileNotFoundError:
        raise _unfinished(run, MODEL) from None
    except (OSError, SafetensorError) as error:
        raise BundleError(f"the export in {path.parent} cannot be read: {error}") from error


def load_export_of(run: str | Path, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and state dict of a run's export, refused if it is of another kind of stage."""
    found, config, state = load_export(run)
    if found != kind:
        raise BundleError(f"{run} holds a {found}, not a {kind}; give a {kind}'s run")
    return config, state


def _folder(run: str | Path) -> Path:
    folder = Path(run)
    return folder / "export" if (folder / "export").is_dir() else folder


def _unfinished(run: str | Path, missing: str) -> BundleError:
    return BundleError(f"{run} holds no finished stage ({missing} is missing); train it first")


def _write(target: Path, header: Mapping[str, Any], state: Mapping[str, Tensor]) -> Path:
    """Replace the folder `target`: all of it or nothing."""
    with atomic_folder(target) as temporary:
        save_tensors(state, temporary / MODEL)
        content = {"format": FORMAT} | dict(header) | {"sha256": sha256(temporary / MODEL)}
        (temporary / CONFIG).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return target
