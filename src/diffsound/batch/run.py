"""Bulk generation: rows in, sounds and a manifest out; it can be stopped and resumed at any time.

    generate_batch("prompts.jsonl", "out")

Every sound is the one a single generation with its seed makes, whatever ran beside it and on
whichever engine: this machine with a lane per core, or Ray over many of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffsound.audio.io import audio_seconds
from diffsound.batch import manifest
from diffsound.batch.lanes import Lanes
from diffsound.batch.pack import PACK_LOUDNESS, check_pack, write_pack
from diffsound.batch.rows import RowTask, read_requests
from diffsound.errors import AudioError, DiffsoundError, InputError
from diffsound.files import make_folder, sha256, sweep
from diffsound.generation.settings import (
    FORMATS,
    OUTPUT,
    OutputSettings,
    check,
    renamed,
    short_name,
)
from diffsound.model.bundle import resolve
from diffsound.model.checks import check_ranks

if TYPE_CHECKING:
    from torch import Tensor

    from diffsound.generation.pipeline import TextToSound
    from diffsound.generation.sound import Sound

MAX_LANES = 8
_LOCK = "batch.lock"
# Requests handed out together: to an accelerator they are one micro-batch (which the pipeline cuts
# to its memory), to a machine of a cluster one task.
_TOGETHER = {"cpu": 1, "cluster": 4, "accelerator": 32}


@dataclass(frozen=True)
class Failure:
    """A row that could not be made, and why."""

    line: int
    prompt: str
    error: str


@dataclass(frozen=True)
class Outcome:
    """What became of some requests."""

    made: tuple[manifest.Entry, ...] = ()
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True)
class BatchReport:
    """made, kept: sounds of this run, and those that were there already."""

    made: int
    kept: int
    failures: tuple[Failure, ...]


class Interrupted(Exception):
    """The batch was stopped from outside."""


@dataclass(frozen=True)
class Maker:
    """Makes requests into files. Plain values only, so that it can be sent to other machines."""

    folder: str
    bundle: str | None
    device: str
    backend: str | None
    context: tuple[str | None, ...]

    def prepare(self) -> None:
        """Load the model into this process."""
        load_pipeline(self.bundle, self.device, self.backend)

    def __call__(
        self, requests: Sequence[RowTask], stopped: Callable[[], bool] = lambda: False
    ) -> Outcome:
        """Make requests of equal settings; a row that fails does not affect the others."""
        pipeline = load_pipeline(self.bundle, self.device, self.backend)
        try:
            sounds = self._generate(pipeline, requests, stopped)
        except Interrupted:
            raise
        except Exception as error:
            if len(requests) > 1:
                alone = [self([request], stopped) for request in requests]
                return Outcome(
                    tuple(chain.from_iterable(outcome.made for outcome in alone)),
                    tuple(chain.from_iterable(outcome.failures for outcome in alone)),
                )
            return Outcome(failures=(_failure(requests[0], error),))
        # Not caught: a disk that cannot be written fails every other row too.
        return Outcome(
            tuple(
                self._save(sound, request, place)
                for request, made in zip(requests, sounds, strict=True)
                for place, sound in enumerate(made)
            )
        )

    def _generate(
        self, pipeline: TextToSound, requests: Sequence[RowTask], stopped: Callable[[], bool]
    ) -> list[list[Sound]]:
        """The sounds of each request, in the order of its files."""
        from diffsound.generation.jobs import Job
        from diffsound.text import clean_prompt

        def on_step(share: float, tokens: Tensor) -> None:
            if stopped():
                raise Interrupted

        first = requests[0]
        if first.varied:  # the only one: its group is its own
            count, seed = len(first.seeds), first.seeds[0]
            return [
                pipeline.variations(
                    first.prompt, count, seed=seed, callback=on_step, **first.settings
                )
            ]
        sounds = iter(
            pipeline.run_jobs(
                [Job(clean_prompt(r.prompt), seed) for r in requests for seed in r.seeds],
                callback=on_step,
                **first.settings,
            )
        )
        made = [[next(sounds) for _ in request.seeds] for request in requests]
        return [
            takes if request.keep is None else pipeline.rank(takes, request.keep)
            for request, takes in zip(requests, made, strict=True)
        ]

    def _save(self, sound: Sound, request: RowTask, place: int) -> manifest.Entry:
        path = Path(self.folder) / request.files[place]
        path.parent.mkdir(exist_ok=True)  # a pack has folders
        sound.save(path, **request.output)
        score = {} if sound.score is None else {"score": round(sound.score, 4)}
        return {
            "file": request.files[place],
            "sha256": sha256(path),
            "seconds": round(audio_seconds(path), 3),
            "sample_rate": request.output.get("rate") or sound.sample_rate,
            **sound.metadata,
            **score,
            "key": request.key(place, self.context),
        }


@cache
def load_pipeline(bundle: str | None, device: str, backend: str | None) -> TextToSound:
    """One per process, for all the work it gets."""
    from diffsound.generation.pipeline import TextToSound

    return TextToSound.from_pretrained(bundle, device=device, backend=backend)


def generate_batch(
    prompts: str | Path,
    out: str | Path,
    *,
    bundle: str | Path | None = None,
    device: str = "cpu",
    backend: str | None = None,
    file_format: str = "wav",
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    overwrite: bool = False,
    pack: bool = False,
    progress: Callable[[float], None] | None = None,
    **defaults: Any,
) -> BatchReport:
    """Make every row of `prompts` into the folder `out`.

    What an earlier run made is kept when its checksum still holds. Rows that fail are tried once
    more at the end, then listed in the report and in failures.jsonl.

    engine, workers, address: "local" with this many lanes (default: one per core), or "ray" with a
    cluster's address. pack: make it a sample pack (`pack.py`). progress: called with the share
    done. defaults: fields of `rows.BatchRow`, for the rows that leave them out.
    """
    if file_format not in FORMATS:
        raise InputError(f"unknown format '{file_format}'; there are: {', '.join(FORMATS)}")
    if pack and defaults.get("loudness") is None:
        defaults["loudness"] = PACK_LOUDNESS
    given = {name: value for name in OUTPUT if (value := defaults.get(name)) is not None}
    check(OutputSettings, given)
    requests = read_requests(prompts, file_format, folders=pack, **defaults)
    if any(request.keep is not None for request in requests):
        check_ranks(bundle)  # refused now rather than row by row
    if pack and not overwrite:
        check_pack(Path(out))
    folder = make_folder(out)
    maker = Maker(
        folder=str(folder.resolve()),
        bundle=None if bundle is None else str(bundle),
        device=device,
        backend=backend,
        context=_context(bundle, backend, file_format),
    )
    with _held(folder):
        sweep(folder)
        entries = manifest.read_manifest(folder)
        kept = {
            request.files[place]: entries[request.files[place]]
            for request in requests
            for place in range(len(request.files))
            if manifest.is_made(
                folder, entries.get(request.files[place]), request.key(place, maker.context)
            )
        }
        missing = list(_without(requests, kept))
        if not overwrite:
            _check_free(folder, missing)
        manifest.write(folder, entries.values())  # without the line a kill may have left unfinished

        run = _runner(engine, workers, address, device)
        failed, made = _first_and_again(run, maker, missing, folder, progress)
        entries |= made
        ours = [name for request in requests for name in request.files if name in entries]
        others = [entry for name, entry in entries.items() if name not in set(ours)]
        manifest.write(folder, [*others, *(entries[name] for name in ours)])
        manifest.write(folder, map(asdict, failed), manifest.FAILURES)
        if pack:
            write_pack(folder, [entries[name] for name in ours], resolve(bundle))
        again = {name for request in missing for name in request.files}
        return BatchReport(made=len(made), kept=len(kept.keys() - again), failures=tuple(failed))


Run = Callable[[Maker, Sequence[RowTask]], Iterator[Outcome]]


def _first_and_again(
    run: Run,
    maker: Maker,
    requests: Sequence[RowTask],
    folder: Path,
    progress: Callable[[float], None] | None,
) -> tuple[list[Failure], dict[str, manifest.Entry]]:
    """Make the requests, and once more those that failed."""
    made: dict[str, manifest.Entry] = {}
    failed: list[Failure] = []
    total = sum(len(request.files) for request in requests)
    for attempt in (requests, None):
        if attempt is None:
            again = {failure.line for failure in failed}
            attempt = [request for request in requests if request.line in again]
        if not attempt:  # no work, no engine
            break
        failed = []
        for outcome in run(maker, attempt):
            manifest.append(folder, outcome.made)
            made |= {entry["file"]: entry for entry in outcome.made}
            failed += outcome.failures
            if progress is not None:
                progress(len(made) / total)
    return sorted(failed, key=lambda failure: failure.line), made


def _runner(engine: str, workers: int | None, address: str | None, device: str) -> Run:
    """How requests are run: in this process, or on a cluster."""
    from diffsound.data.engines import available_cores, make_engine

    if engine == "ray":
        cluster = make_engine("ray", workers, address)
        return lambda maker, requests: cluster.map(maker, _together(requests, _TOGETHER["cluster"]))
    if engine != "local":
        raise InputError(f"unknown engine '{engine}'; there are: local, ray")
    if address is not None:
        raise InputError("--address belongs to --engine ray")
    if workers is not None and workers < 1:
        raise InputError(f"workers must be at least 1, not {workers}")
    if device == "cpu":
        count, together = workers or min(available_cores(), MAX_LANES), _TOGETHER["cpu"]
    else:
        count, together = workers or 1, _TOGETHER["accelerator"]

    def run(maker: Maker, requests: Sequence[RowTask]) -> Iterator[Outcome]:
        yield from Lanes(count).map(maker, _together(requests, together))

    return run


def _together(requests: Iterable[RowTask], size: int) -> Iterator[list[RowTask]]:
    """Requests of equal settings in chunks of at most `size`."""
    waiting: dict[tuple[Any, ...], list[RowTask]] = {}
    for request in requests:
        chunk = waiting.setdefault(request.group, [])
        chunk.append(request)
        if len(chunk) == size:
            yield waiting.pop(request.group)
    yield from waiting.values()


def _without(requests: Iterable[RowTask], kept: dict[str, Any]) -> Iterator[RowTask]:
    """The requests, reduced to the sounds that are still missing.

    The best of some candidates are found among all of them, and variations are made of the first:
    such requests stay whole.
    """
    for request in requests:
        places = [place for place, name in enumerate(request.files) if name not in kept]
        if places and request.whole:
            yield request
        elif places:
            yield replace(
                request,
                seeds=tuple(request.seeds[place] for place in places),
                files=tuple(request.files[place] for place in places),
            )


def _check_free(folder: Path, requests: Iterable[RowTask]) -> None:
    """Refuse to write over a file that holds another sound."""
    for request in requests:
        for place, name in enumerate(request.files):
            path = folder / name
            seeds = request.seeds if request.whole else request.seeds[place : place + 1]
            if path.exists() and not _same_recipe(path, request, seeds):
                raise AudioError(
                    f"{path} exists and is not the sound of line {request.line}; "
                    "choose another folder or add --overwrite"
                )


def _same_recipe(path: Path, request: RowTask, seeds: Sequence[int]) -> bool:
    """Whether the file says it was made by this request: a kill came before its manifest line."""
    from diffsound.generation.sound import read_recipe
    from diffsound.text import clean_text

    try:
        recipe = read_recipe(path)
        asked: dict[str, Any] = {"prompt": clean_text(request.prompt)}
    except (DiffsoundError, ValueError):
        return False
    asked |= {name: v for name, v in request.settings.items() if name != "negative_prompt"}
    return (
        recipe is not None
        and recipe.get("seed") in seeds
        # A variation is an edit, whose recipe has no duration and no number of takes.
        and all(recipe.get(n, v if request.varied else None) == v for n, v in asked.items())
    )


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Keep other batches out of the folder: two would overwrite each other's manifest.

    The kernel releases the lock when its holder dies, so a killed batch never has to be unlocked.
    """
    from filelock import FileLock, Timeout

    path = folder / _LOCK
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink()
            lock.release()
    except Timeout:
        raise AudioError(
            f"another batch is writing to {folder}; wait for it or choose another folder"
        ) from None
    except OSError as error:
        raise AudioError(
            f"cannot write to {folder}: {error.strerror or error}; what is finished is kept, "
            "run again to continue"
        ) from error


def _context(
    bundle: str | Path | None, backend: str | None, file_format: str
) -> tuple[str | None, ...]:
    """What all sounds depend on besides their requests; a bundle's config has its checksums."""
    from diffsound.model.bundle import CONFIG_FILE, read_config

    source = resolve(bundle)
    read_config(source)
    return sha256(source / CONFIG_FILE), backend, file_format


def _failure(request: RowTask, error: Exception) -> Failure:
    reason = " ".join(renamed(str(error), short_name).split()) or type(error).__name__
    if not isinstance(error, DiffsoundError):
        reason = f"{type(error).__name__}: {reason}"
    return Failure(request.line, request.prompt, reason)
