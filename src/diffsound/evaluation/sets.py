"""What every evaluation of a bundle begins with: models, data, a folder and its sets of sounds.

OUT/real/ID.wav          the split's clips, cut or padded to one length
OUT/vocoder/ID.wav       their mels through the vocoder alone: what the vocoder costs
OUT/codec/ID.wav         their mels through codec and vocoder: the best any decoder can do
OUT/generated/ID.N.wav   sample N of the clip's caption

Files appear whole, so an interrupted evaluation makes only what is missing when it is run again. A
sound's seed comes from the clip's id, so it is the same whichever clips are made beside it.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import diffsound
from diffsound.audio.io import fit_length, read_audio, resample, write_audio
from diffsound.data.prepare import batches
from diffsound.data.shards import PreparedData
from diffsound.errors import DataError, InputError
from diffsound.files import make_folder, read_json, sha256, write_text
from diffsound.generation.jobs import Job
from diffsound.generation.pipeline import TextToSound
from diffsound.judges.captioner import Captioner, load_captioner
from diffsound.judges.classifier import Classifier, load_classifier
from diffsound.judges.ranking import LikelihoodRanker
from diffsound.model.backends import usable_device
from diffsound.model.bundle import BUNDLED, CONFIG_FILE, Bundle, resolve
from diffsound.text import clean_prompt

REPORT = "report.json"
EXAMPLES = "examples.json"
_SETTINGS = "settings.json"
_SPEED = "speed.json"
_BATCH = 8

Progress = Callable[[str, int, int], None]  # what, number done, number in all


@dataclass(frozen=True)
class Setup:
    """A loaded bundle, the classifier that judges it, real clips, and the folder for results."""

    source: Path
    pipeline: TextToSound
    judge: Classifier
    data: PreparedData
    out: Path

    def fixed(self) -> dict[str, Any]:
        """What determines the sounds in the folder, besides an evaluation's own settings."""
        return {
            "bundle": sha256(self.source / CONFIG_FILE),
            "data": sha256(self.data.folder / "index.json"),
        }

    def protocol(self, sampling: Mapping[str, Any]) -> dict[str, Any]:
        """What must be recorded with any number."""
        config = self.pipeline.bundle.config
        return {
            "sample_rate": self.pipeline.sample_rate,
            "mel": config.codec.mel.model_dump(mode="json"),
            "classifier": self.judge.fingerprint,
            "backbone": self.judge.config.backbone.kind,
            "sampling": self.pipeline.settings(**sampling).model_dump(),
            "device": str(self.pipeline.device),
            "threads": torch.get_num_threads(),
            "bundle": {"name": config.name, "sha256": sha256(self.source / CONFIG_FILE)},
            "versions": versions(),
        }


def set_up(
    bundle: str | Path | None,
    data: str | Path,
    out: str | Path,
    *,
    classifier: str | Path | None = None,
    ranker: str | Path | None = None,
    device: str = "cpu",
) -> Setup:
    """Load everything an evaluation needs and make its folder.

    classifier: a run; by default the bundle's. ranker: a captioner's run that chooses among
    candidates; by default the bundle's.
    """
    source = resolve(bundle)
    judge = load_classifier(judge_folder(source, classifier, "classifier"))
    given = None
    if ranker is not None:
        given = LikelihoodRanker(load_captioner(ranker).to(usable_device(device)))
    pipeline = TextToSound(Bundle.from_pretrained(source), device=device, ranker=given)
    return Setup(source, pipeline, judge, PreparedData.open(data), make_folder(Path(out)))


def judge_folder(bundle: Path, given: str | Path | None, kind: str) -> Path:
    """The folder of a classifier or captioner: the one given, or one that ships with a bundle."""
    if given is not None and str(given) != "bundle":
        return Path(given)
    for place in (bundle / kind, BUNDLED / kind, BUNDLED.parent / kind):
        if place.is_dir():
            return place
    raise InputError(f"{bundle} has no {kind}; give one with --{kind} RUN")


def find_captioner(bundle: Path, given: str | Path | None) -> Captioner | None:
    """The captioner given, or the bundle's, or None, which leaves caption scores out."""
    try:
        return load_captioner(judge_folder(bundle, given, "captioner"))
    except InputError:
        if given is not None:
            raise
        return None


def versions() -> dict[str, str]:
    """Versions that a number may depend on."""
    return {
        "diffsound": diffsound.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def check_same(out: Path, now: dict[str, Any]) -> None:
    """Refuse to mix the sounds of two settings in one folder."""
    path = out / _SETTINGS
    if path.exists():
        try:
            before = dict(read_json(path))
        except (OSError, TypeError, ValueError):
            before = {}
        changed = [f"{key} was {before.get(key)!r}" for key in now if before.get(key) != now[key]]
        if changed:
            raise InputError(
                f"{out} holds an evaluation with different settings ({'; '.join(changed)}); "
                "use the same settings or another --out"
            )
    write_json(path, now)


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

    clips: number drawn by the seed; None takes all. A clip's first caption is the one used.
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
        rows = read_json(path)
        return [Example(row["id"], row["caption"], tuple(row["captions"])) for row in rows]
    except FileNotFoundError:
        raise DataError(
            f"{folder} is not the folder of an evaluation (no {EXAMPLES}); make one with: "
            "diffsound evaluate run BUNDLE --data DIR --out DIR"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def common_texts(runs: Mapping[str, str | Path]) -> dict[str, str]:
    """Captions by clip id, of the clips that every run has with the same caption."""
    tables = [{one.id: one.caption for one in read_examples(folder)} for folder in runs.values()]
    common = set.intersection(*(set(table.items()) for table in tables))
    if not common:
        raise InputError(
            "these evaluations have no text in common; run them all with the same data and seed"
        )
    return dict(sorted(common))


def sample_seed(seed: int, clip_id: str, sample: int) -> int:
    """The seed of a clip's sample: different for each, the same in every evaluation with `seed`."""
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
    """Write the real clips at a rate and length."""
    wanted = {example.id: folder / f"{example.id}.wav" for example in examples}
    for name, path in _missing(wanted, "real", progress):
        wave = resample(data.wave(data.position(name)), data.index.mel.sample_rate, rate)
        write_audio(path, fit_length(wave, round(seconds * rate)), rate, overwrite=True)


def write_copies(
    bench: Setup, examples: Sequence[Example], *, seconds: float, progress: Progress | None = None
) -> None:
    """Write the real clips, and what vocoder alone and codec with vocoder make of them.

    By the pipeline's own path, so that the rows show what ships.
    """
    pipeline, bundle, rate = bench.pipeline, bench.pipeline.bundle, bench.pipeline.sample_rate
    real = bench.out / "real"
    write_real(real, bench.data, examples, rate=rate, seconds=seconds, progress=progress)
    for row in ("vocoder", "codec"):
        wanted = {example.id: bench.out / row / f"{example.id}.wav" for example in examples}
        for name, path in _missing(wanted, row, progress):
            wave = torch.from_numpy(read_audio(real / f"{name}.wav", rate))
            mel = bundle.mel(wave)
            if row == "codec":
                mel = pipeline.decode(bundle.codec.encode(mel), [torch.Generator().manual_seed(0)])
            made = pipeline.vocode(mel)[0].cpu().numpy()
            write_audio(path, fit_length(made, len(wave)), rate, overwrite=True)


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
    """Generate sounds from the captions; returns the seconds per sound, None if never measured.

    The time covers everything but writing files, in batches of a few sounds, over all the calls
    that filled the folder.
    """
    jobs = {
        f"{example.id}.{n}": Job(example.caption, sample_seed(seed, example.id, n))
        for example in examples
        for n in range(samples)
    }
    wanted = {name: folder / f"{name}.wav" for name in jobs}
    try:
        found = read_json(folder / _SPEED)
        speed = {name: float(found[name]) for name in ("sounds", "seconds")}
    except (OSError, ValueError, KeyError, TypeError):
        speed = {"sounds": 0.0, "seconds": 0.0}
    for batch in batches(_missing(wanted, "generated", progress), _BATCH):
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
    """Write the candidates of each caption that the pipeline's ranker likes best, ID.0 first."""
    by_id = {example.id: example for example in examples}
    # The last file of a text is written last: if it exists, so do the others.
    wanted = {name: folder / f"{name}.{keep - 1}.wav" for name in by_id}
    for name, _ in _missing(wanted, "generated", progress):
        jobs = [Job(by_id[name].caption, sample_seed(seed, name, n)) for n in range(candidates)]
        sounds = pipeline.run_jobs(jobs, duration=seconds, **(sampling or {}))
        for place, sound in enumerate(pipeline.rank(sounds, keep)):
            sound.save(folder / f"{name}.{place}.wav")


def sample_names(examples: Sequence[Example], samples: int) -> dict[str, str]:
    """The generated sounds' names, each with the id of its real clip."""
    return {f"{example.id}.{n}": example.id for example in examples for n in range(samples)}


def write_json(path: Path, content: Any) -> None:
    """Write JSON; numbers that are not finite are refused as mistakes."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n")


def _missing(
    wanted: Mapping[str, Path], what: str, progress: Progress | None
) -> Iterator[tuple[str, Path]]:
    """The files that do not exist yet, by name."""
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
