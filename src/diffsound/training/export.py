"""What a finished (or running) run hands on: RUN/export/ with config.json and model.safetensors.

A bundle carries its judges (captioner, classifier) in folders of the same form.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffsound.errors import BundleError
from diffsound.files import make_public, sha256
from diffsound.training.checkpoint import save_tensors
from diffsound.weights import cast

FORMAT = 1
CONFIG = "config.json"
MODEL = "model.safetensors"


def write_export(
    run: Path,
    kind: str,
    config: Mapping[str, Any],
    state: Mapping[str, Tensor],
    *,
    step: int,
    metrics: Mapping[str, float],
) -> Path:
    """Write RUN/export anew; the old one stays until the new one is whole."""
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
        content: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
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
    """Write the folder `target` anew: all of it or nothing."""
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        save_tensors(state, temporary / MODEL)
        content = {"format": FORMAT} | dict(header) | {"sha256": sha256(temporary / MODEL)}
        (temporary / CONFIG).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        for path in temporary.iterdir():
            with path.open("rb") as written:
                os.fsync(written.fileno())
            make_public(path)
        temporary.chmod(0o755)
        retired = target.parent / f".{target.name}-old-{os.getpid()}"
        if target.exists():
            target.rename(retired)
        temporary.rename(target)
        shutil.rmtree(retired, ignore_errors=True)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return target
