"""Starting, resuming and estimating a run.

RUN/config.yaml     the settings that ran          RUN/log.jsonl     figures, one line each
RUN/run.json        what data and versions         RUN/samples/      pictures and sounds
RUN/step-…/         checkpoints                    RUN/export/       what `bundle build` takes
"""

from __future__ import annotations

import json
import os
import platform
import resource
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock, Timeout
from pydantic import ValidationError

import diffsound
from diffsound.config import dump_yaml, flat, load_config
from diffsound.data.shards import PreparedData
from diffsound.errors import ConfigError, DataError, InputError
from diffsound.files import make_folder, read_json, sha256, sweep, write_text
from diffsound.training.assemble import start_from
from diffsound.training.codec import CodecRun, CodecStage
from diffsound.training.config import FREE_ON_RESUME, RETIRED, RunConfig
from diffsound.training.decoder import DecoderRun, DecoderStage
from diffsound.training.engine import Accelerator, make_accelerator
from diffsound.training.judges import CaptionerRun, CaptionerStage, ClassifierRun, ClassifierStage
from diffsound.training.loop import Ending, Trainer, TrainingFailed
from diffsound.training.matcher import MatcherRun, MatcherStage
from diffsound.training.run_files import checkpoint_steps
from diffsound.training.stage import Process, Stage
from diffsound.training.vocoder import VocoderRun, VocoderStage

WARM_UP, MEASURED = 2, 5  # steps of an estimate


# A stage's config and class, by its name.
STAGE_CLASSES: dict[str, tuple[type[RunConfig], Callable[..., Stage]]] = {
    "codec": (CodecRun, CodecStage),
    "vocoder": (VocoderRun, VocoderStage),
    "decoder": (DecoderRun, DecoderStage),
    "classifier": (ClassifierRun, ClassifierStage),
    "captioner": (CaptionerRun, CaptionerStage),
    "matcher": (MatcherRun, MatcherStage),
}


def train(
    kind: str,
    config_path: str | Path,
    data: str | Path,
    run: str | Path,
    overrides: Iterable[str] = (),
    *,
    quiet: bool = False,
) -> Ending:
    """Train a stage from a config file; a run that exists in the folder is resumed."""
    config = load_config(STAGE_CLASSES[kind][0], config_path, overrides)
    return train_config(config, data, run, quiet=quiet)


def train_config(
    config: RunConfig, data: str | Path, run: str | Path, *, quiet: bool = False
) -> Ending:
    """Train a stage from a config; a run that exists in the folder is resumed."""
    folder = Path(run)
    accelerator = make_accelerator(config.train, folder)
    prepared = PreparedData.open(data)
    # The first process may have tokens to make; the others then find them.
    with accelerator.main_process_first():
        config = config.completed(prepared)
    facts = run_facts(config, prepared, accelerator.num_processes)
    main = accelerator.is_main_process
    if main:
        make_folder(folder)
    accelerator.wait_for_everyone()
    try:
        with run_lock(folder) if main else nullcontext():
            check_resume(folder, config, facts)
            accelerator.wait_for_everyone()
            stage = build_stage(config, prepared, accelerator)
            trainer = Trainer(stage, config.train, folder, accelerator)
            if main:
                sweep(folder)  # safe: this process holds the lock
                write_text(folder / "config.yaml", dump_yaml(config))
                write_text(folder / "run.json", json.dumps(facts, indent=1) + "\n")
            accelerator.wait_for_everyone()
            return trainer.fit(quiet=quiet)
    except OSError as error:
        raise TrainingFailed(f"cannot train in {folder}: {error.strerror or error}") from error


def build_stage(config: RunConfig, data: PreparedData, accelerator: Accelerator) -> Stage:
    """The stage with its first weights (random, or another run's), equal in every process."""
    torch.manual_seed(config.train.seed)
    process = Process(accelerator.process_index, accelerator.num_processes)
    stage = STAGE_CLASSES[config.stage][1](config, data, process)
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
    """Refuse to resume a run with other settings, data or batch size; the message names them."""
    if not (run / "config.yaml").exists() or not checkpoint_steps(run):
        return
    try:
        before = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
        old_facts = read_json(run / "run.json")
        old_data, old_batch = old_facts["data"], old_facts["clips_per_batch"]
    except (OSError, ValueError, yaml.YAMLError, KeyError) as error:
        raise InputError(f"{run} is not a readable run folder: {error}") from error
    changed = [
        f"{key} was {was!r}, now {now!r}"
        for key, was, now in changes(before, config)
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
            f"{run} was trained on the data in {old_data['folder']}; {facts['data']['folder']} "
            "has another index; use the same data or another --run"
        )


def changes(before: Mapping[str, Any], config: RunConfig) -> list[tuple[str, Any, Any]]:
    """(dotted key, old value, new value) of every setting that differs.

    A setting that is newer than the run had its default then. One that this version no longer has
    counts only if it did something.
    """
    now = config.model_dump(mode="json")
    old, new = flat(before), flat(now)
    gone = [key for key in old if key not in new]
    try:
        filled = type(config).model_validate(_within(before, now)).model_dump(mode="json")
        old = {key: old[key] for key in gone} | flat(filled)
    except ValidationError:
        pass  # a setting has another form now: compare what was written
    keys = [*new, *(key for key in gone if old[key] and old[key] != RETIRED.get(key))]
    return [(key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]


def _within(settings: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without keys that `known` does not have."""
    return {
        key: _within(value, known[key])
        if isinstance(value, Mapping) and isinstance(known[key], Mapping)
        else value
        for key, value in settings.items()
        if key in known
    }


@contextmanager
def run_lock(run: Path) -> Iterator[None]:
    """Hold the run folder for this process, or refuse and say who holds it.

    The kernel releases the lock when its holder dies, so a killed run never has to be unlocked.
    """
    lock, holder = FileLock(run / "run.lock"), run / "run.holder"
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        known = holder.read_text(encoding="utf-8").strip() if holder.exists() else ""
        raise InputError(
            f"the run folder {run} is in use by {known or 'another process'}; "
            "stop it or choose another --run"
        ) from error
    try:
        holder.write_text(f"process {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8")
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def estimate(
    kind: str, config_path: str | Path, data: str | Path, overrides: Iterable[str] = ()
) -> str:
    """Take a few steps without a run folder; say how large the stage is and how long it takes."""
    config = load_config(STAGE_CLASSES[kind][0], config_path, overrides)
    accelerator = make_accelerator(config.train)
    prepared = PreparedData.open(data)
    config = config.completed(prepared)
    stage = build_stage(config, prepared, accelerator)
    with tempfile.TemporaryDirectory() as nowhere:
        trainer = Trainer(stage, config.train, Path(nowhere), accelerator)
        seconds = trainer.time_steps(WARM_UP, MEASURED)
    lines = []
    weights = 0
    for name, player in stage.players.items():
        count = sum(parameter.numel() for parameter in player.module.parameters())
        weights += count
        lines.append(f"{name:<16}{count:>14,} parameters")
    # Per weight: itself, its gradient, two moments; the product's average on top.
    averaged = sum(p.numel() for p in stage.product.parameters()) if trainer.team.ema else 0
    state = 4 * (4 * weights + averaged)
    lines.append(f"{'state':<16}{state / 1e6:>14,.0f} MB (weights, gradients, moments, average)")
    lines.append(f"{'peak memory':<16}{_peak_bytes() / 1e6:>14,.0f} MB (this process, measured)")
    settings = config.train
    clips = settings.batch_size * settings.accumulation * accelerator.num_processes
    lines.append(f"{'step':<16}{seconds:>14.3f} s ({clips / seconds:.1f} clips/s)")
    steps = trainer.span.steps
    whole = seconds * steps if steps else float("inf")
    if settings.max_minutes:
        whole = min(whole, 60 * settings.max_minutes)
    shown = f"{whole / 3600:.2f} h"
    lines.append(f"{'whole run':<16}{shown:>16} ({round(whole / seconds):,} steps)")
    return "\n".join(lines)


def _peak_bytes() -> int:
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
