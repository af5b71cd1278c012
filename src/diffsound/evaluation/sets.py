"""The sets of sounds an evaluation scores, each a folder of files that is finished when resumed.

OUT/real/ID.wav          the split's clips, cut or padded to one length
OUT/vocoder/ID.wav       their mels through the vocoder alone: what the vocoder costs
OUT/codec/ID.wav         their mels through codec and vocoder: the best any decoder can do
OUT/generated/ID.N.wav   sample N of the clip's caption

A file appears whole, so a file that is there is not made again. Its seed comes from the clip's id,
so a sound is the same whichever clips are made beside it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from diffsound.audio.io import fit_length, resample, write_audio
from diffsound.data.shards import PreparedData
from diffsound.errors import DataError, InputError
from diffsound.evaluation.clips import FileClip
from diffsound.files import atomic_write
from diffsound.jobs import Job
from diffsound.pipeline import TextToSound
from diffsound.text.clean import clean_prompt

EXAMPLES = "examples.json"
_SPEED = "speed.json"
_BATCH = 8

Progress = Callable[[str, int, int], None]  # what, how many done, of how many


@dataclass(frozen=True)
class Example:
    """A real clip and the text that sounds are made from; `captions` are all that fit the clip."""

    id: str
    caption: str
    captions: tuple[str, ...]


def choose_examples(
    data: PreparedData, split: str, clips: int | None = None, seed: int = 0
) -> tuple[list[Example], dict[str, str]]:
    """Clips of a split with a usable caption, and the ids of the others with the reason.

    clips: how many are drawn by the seed; None takes all. A clip's first caption is its own.
    """
    positions = data.where(split=split)
    if not positions:
        splits = sorted({record.split for record in data.records})
        raise DataError(f"{data.folder} has no clip of the split '{split}'; it has {splits}")
    examples, left_out = [], {}
    for record in (data.records[i] for i in positions):
        try:
            caption = clean_prompt(record.captions[0]) if record.captions else ""
        except InputError as error:
            left_out[record.id] = str(error)
            continue
        if caption:
            examples.append(Example(record.id, caption, record.captions))
        else:
            left_out[record.id] = "it has no caption"
    if not examples:
        raise DataError(f"no clip of the split '{split}' of {data.folder} has a usable caption")
    if clips is not None and clips < len(examples):
        drawn = np.random.default_rng(seed).choice(len(examples), size=clips, replace=False)
        examples = [examples[i] for i in sorted(drawn.tolist())]
    return examples, left_out


def write_examples(folder: Path, examples: Sequence[Example]) -> None:
    """Write FOLDER/examples.json."""
    write_json(folder / EXAMPLES, [asdict(example) for example in examples])


def read_examples(folder: str | Path) -> list[Example]:
    """The examples of an evaluation's folder."""
    path = Path(folder) / EXAMPLES
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return [Example(row["id"], row["caption"], tuple(row["captions"])) for row in rows]
    except FileNotFoundError:
        raise DataError(
            f"{folder} is not the folder of an evaluation (no {EXAMPLES}); make one with: "
            "diffsound evaluate run BUNDLE --data DIR --out DIR"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def sample_seed(seed: int, clip_id: str, sample: int) -> int:
    """The seed of a clip's sample: another for each, the same in every evaluation with `seed`."""
    digest = hashlib.sha256(f"{seed}:{clip_id}".encode()).digest()
    return int.from_bytes(digest[:4], "big") + sample


def write_real(
    folder: Path,
    data: PreparedData,
    examples: Sequence[Example],
    *,
    rate: int,
    seconds: float,
    progress: Progress | None = None,
) -> None:
    """The real clips at a rate and length."""
    wanted = {example.id: folder / f"{example.id}.wav" for example in examples}
    for name, path in _missing(wanted, "real", progress):
        wave = resample(data.wave(data.position(name)), data.index.mel.sample_rate, rate)
        write_audio(path, fit_length(wave, round(seconds * rate)), rate, overwrite=True)


def write_passed(
    folder: Path,
    real: Path,
    pipeline: TextToSound,
    examples: Sequence[Example],
    *,
    through: str,
    progress: Progress | None = None,
) -> None:
    """The real clips through the "vocoder" alone, or through the "codec" and then the vocoder."""
    wanted = {example.id: folder / f"{example.id}.wav" for example in examples}
    chain, rate = pipeline.chain, pipeline.sample_rate
    for name, path in _missing(wanted, through, progress):
        wave = torch.from_numpy(FileClip(name, real / f"{name}.wav").wave(rate))
        with torch.inference_mode():
            if through == "codec":
                made = chain.vocode(chain.decode(chain.tokenize(wave)[None]))
            else:
                mel = pipeline.bundle.mel_front_end(wave[None])
                made = pipeline.bundle.vocoder(mel.to(chain.device)).float()
        samples = fit_length(made[0].cpu().numpy(), len(wave))
        write_audio(path, samples, rate, overwrite=True)


def write_generated(
    folder: Path,
    pipeline: TextToSound,
    examples: Sequence[Example],
    *,
    samples: int,
    seconds: float,
    seed: int,
    sampling: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> float | None:
    """Sounds from the captions; returns the seconds one takes, None if that was never measured.

    The time is of everything but the writing of files, in batches of a few sounds, over all the
    calls that filled the folder.
    """
    jobs = {
        f"{example.id}.{n}": Job(example.caption, sample_seed(seed, example.id, n))
        for example in examples
        for n in range(samples)
    }
    wanted = {name: folder / f"{name}.wav" for name in jobs}
    speed = _read_speed(folder)
    for batch in _batches(_missing(wanted, "generated", progress), _BATCH):
        started = time.perf_counter()
        sounds = pipeline.run_jobs(
            [jobs[name] for name, _ in batch], duration=seconds, **(sampling or {})
        )
        speed["seconds"] += time.perf_counter() - started
        speed["sounds"] += len(batch)
        for (_, path), sound in zip(batch, sounds, strict=True):
            sound.save(path)
        write_json(folder / _SPEED, speed)
    return speed["seconds"] / speed["sounds"] if speed["sounds"] else None


def write_best(
    folder: Path,
    pipeline: TextToSound,
    examples: Sequence[Example],
    *,
    candidates: int,
    keep: int,
    seconds: float,
    seed: int,
    sampling: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> None:
    """Of each caption's candidates those the pipeline's ranker likes best, ID.0 the very best."""
    by_id = {example.id: example for example in examples}
    # A text's last file is written last: where it is, the others are.
    wanted = {name: folder / f"{name}.{keep - 1}.wav" for name in by_id}
    for name, _ in _missing(wanted, "generated", progress):
        jobs = [Job(by_id[name].caption, sample_seed(seed, name, n)) for n in range(candidates)]
        sounds = pipeline.run_jobs(jobs, duration=seconds, **(sampling or {}))
        for place, sound in enumerate(pipeline.rank(sounds, keep)):
            sound.save(folder / f"{name}.{place}.wav")


def clips_of(folder: Path, names: Iterable[str]) -> list[FileClip]:
    """The files of a set as clips, in the order of the names."""
    return [FileClip(name, folder / f"{name}.wav") for name in names]


def sample_names(examples: Sequence[Example], samples: int) -> dict[str, str]:
    """The generated sounds' names, each with the id of its real clip."""
    return {f"{example.id}.{n}": example.id for example in examples for n in range(samples)}


def write_json(path: Path, content: Any) -> None:
    """Write JSON; a number that is not finite is a mistake and refused."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    with atomic_write(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def make_folder(folder: Path) -> Path:
    """The folder, made if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from error
    return folder


def _missing(
    wanted: Mapping[str, Path], what: str, progress: Progress | None
) -> Iterator[tuple[str, Path]]:
    """The files that are not there yet, by name."""
    folders = {path.parent for path in wanted.values()}
    for folder in folders:
        make_folder(folder)
    there = {path for folder in folders for path in folder.iterdir()}
    done = len(there & set(wanted.values()))
    for name, path in wanted.items():
        if path not in there:
            yield name, path
            done += 1
            if progress is not None:
                progress(what, done, len(wanted))


def _batches(items: Iterable[tuple[str, Path]], size: int) -> Iterator[list[tuple[str, Path]]]:
    batch: list[tuple[str, Path]] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _read_speed(folder: Path) -> dict[str, float]:
    try:
        found = json.loads((folder / _SPEED).read_text(encoding="utf-8"))
        return {"sounds": float(found["sounds"]), "seconds": float(found["seconds"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {"sounds": 0.0, "seconds": 0.0}
