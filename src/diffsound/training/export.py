"""What a finished (or running) run hands on: RUN/export/ with config.json and model.safetensors."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from diffsound.errors import BundleError
from diffsound.files import sha256
from diffsound.training.checkpoint import save_tensors

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
    target = run / "export"
    temporary = Path(tempfile.mkdtemp(dir=run, prefix=".export-"))
    try:
        save_tensors(state, temporary / MODEL)
        content = {
            "format": FORMAT,
            "kind": kind,
            "step": step,
            "metrics": dict(metrics),
            "sha256": sha256(temporary / MODEL),
            "config": dict(config),
        }
        (temporary / CONFIG).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        for path in temporary.iterdir():
            with path.open("rb") as written:
                os.fsync(written.fileno())
        temporary.chmod(0o755)
        retired = run / f".export-old-{os.getpid()}"
        if target.exists():
            target.rename(retired)
        temporary.rename(target)
        shutil.rmtree(retired, ignore_errors=True)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return target


def load_export(run: str | Path) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
    """Read a run's export (the run folder or its export folder): (kind, config, state dict)."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = Path(run)
    if (folder / "export").is_dir():
        folder = folder / "export"
    try:
        content = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        kind, config = content["kind"], content["config"]
        if content["format"] != FORMAT:
            raise BundleError(
                f"{folder} has export format {content['format']}, this version reads {FORMAT}; "
                "update diffsound"
            )
        if sha256(folder / MODEL) != content["sha256"]:
            raise BundleError(f"{folder / MODEL} is damaged; export the run again")
        state = load_file(folder / MODEL)
    except FileNotFoundError as error:
        raise BundleError(
            f"{run} holds no finished stage ({Path(str(error.filename)).name} is missing); "
            "train it first"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise BundleError(f"the export in {folder} cannot be read: {error}") from error
    return kind, config, state
