"""Starting and resuming a run in its folder.

RUN/config.yaml     the settings that ran          RUN/log.jsonl     figures, one line each
RUN/run.json        what data and versions         RUN/samples/      pictures and sounds
RUN/step-…/         checkpoints                    RUN/export/       what `bundle build` takes
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import yaml

import diffsound
from diffsound.config import dump_yaml, load_config
from diffsound.data.shards import PreparedData
from diffsound.errors import ConfigError, DataError, InputError
from diffsound.files import atomic_write, sha256
from diffsound.training import checkpoint
from diffsound.training.config import FREE_ON_RESUME, RunConfig
from diffsound.training.engine import Accelerator, make_accelerator
from diffsound.training.frozen import start_from
from diffsound.training.lock import run_lock
from diffsound.training.loop import Ending, Trainer
from diffsound.training.registry import stage_spec
from diffsound.training.sets import Process
from diffsound.training.stage import Stage


def train(
    kind: str,
    config_path: str | Path,
    data: str | Path,
    run: str | Path,
    overrides: Iterable[str] = (),
    *,
    quiet: bool = False,
) -> Ending:
    """Train a stage as a config file says; a folder that holds a run already is continued."""
    config = load_config(stage_spec(kind).config, config_path, overrides)
    return train_config(config, data, run, quiet=quiet)


def train_config(
    config: RunConfig, data: str | Path, run: str | Path, *, quiet: bool = False
) -> Ending:
    """Train a stage as a config says; a folder that holds a run already is continued."""
    accelerator = make_accelerator(config.train)
    prepared = PreparedData.open(data)
    folder = Path(run)
    # The first process may have tokens to make; the others then find them.
    with accelerator.main_process_first():
        config = config.completed(prepared)
    facts = run_facts(config, prepared, accelerator.num_processes)
    main = accelerator.is_main_process
    if main:
        _make_folder(folder)
    accelerator.wait_for_everyone()
    with run_lock(folder) if main else nullcontext():
        check_resume(folder, config, facts)
        accelerator.wait_for_everyone()
        stage = build_stage(config, prepared, accelerator)
        trainer = Trainer(stage, config.train, folder, accelerator)
        if main:
            checkpoint.sweep(folder)
            _write(folder / "config.yaml", dump_yaml(config))
            _write(folder / "run.json", json.dumps(facts, indent=1) + "\n")
        accelerator.wait_for_everyone()
        return trainer.fit(quiet=quiet)


def build_stage(config: RunConfig, data: PreparedData, accelerator: Accelerator) -> Stage:
    """The stage with its first weights (drawn, or another run's), alike in every process."""
    torch.manual_seed(config.train.seed)
    process = Process(accelerator.process_index, accelerator.num_processes)
    stage = stage_spec(config.stage).build(config, data, process)
    if config.init is not None:
        product, *others = stage.players
        modules = {product: stage.product, **{n: stage.players[n].module for n in others}}
        start_from(config.init, config.stage, modules)
    stage.ready()
    return stage


def run_facts(config: RunConfig, data: PreparedData, processes: int) -> dict[str, Any]:
    """What a run depends on besides its config."""
    return {
        "stage": config.stage,
        "data": {
            "folder": str(data.folder.resolve()),
            "clips": len(data),
            "index_sha256": sha256(data.folder / "index.json"),
            "mix_sha256": [sha256(Path(folder) / "index.json") for folder in config.folders()],
        },
        "clips_per_batch": config.train.batch_size * processes,
        "versions": {
            "diffsound": diffsound.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def check_resume(run: Path, config: RunConfig, facts: Mapping[str, Any]) -> None:
    """Refuse to continue a run with other settings, data or batch; the message names them."""
    if not (run / "config.yaml").exists() or not checkpoint.steps(run):
        return
    try:
        before = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
        old_facts = json.loads((run / "run.json").read_text(encoding="utf-8"))
        old_data, old_batch = old_facts["data"], old_facts["clips_per_batch"]
    except (OSError, ValueError, yaml.YAMLError, KeyError) as error:
        raise InputError(f"{run} is not a readable run folder: {error}") from error
    changed = [
        f"{key} was {was!r}, now {now!r}"
        for key, was, now in changes(before, config.model_dump(mode="json"))
        if key not in FREE_ON_RESUME
    ]
    if changed:
        raise ConfigError(
            f"{run} was started with other settings: {'; '.join(changed)}; "
            "use the same ones or another --run"
        )
    if old_batch != facts["clips_per_batch"]:
        raise ConfigError(
            f"{run} was started with {old_batch} clips a batch over all processes, now "
            f"{facts['clips_per_batch']}; keep train.batch_size × processes the same"
        )
    same = (old_data["index_sha256"], old_data.get("mix_sha256", [])) == (
        facts["data"]["index_sha256"],
        facts["data"]["mix_sha256"],
    )
    if not same:
        raise DataError(
            f"{run} was trained on the data in {old_data['folder']}; the index of "
            f"{facts['data']['folder']} is another one; give the same data or another --run"
        )


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(dotted key, old value, new value) of every setting that differs."""
    old, new = _flat(before), _flat(now)
    keys = [*new, *(key for key in old if key not in new)]
    return [(key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make the run folder {folder}: {error.strerror}; choose another --run"
        ) from error


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
