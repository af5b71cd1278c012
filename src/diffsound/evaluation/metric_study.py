"""Do FID and KL measure anything (section VI-C, figure 2)?

Real clips are disturbed level by level, by Gaussian noise, by masking or by another sound; the
metrics of the disturbed set against the originals should rise with every level.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diffsound.audio.io import fit_length
from diffsound.audio.mel import MelFrontEnd
from diffsound.audio.mixing import SILENT, decibels, rms
from diffsound.audio.spectrogram import spectrogram_image
from diffsound.data.shards import PreparedData
from diffsound.errors import InputError, MissingExtraError
from diffsound.evaluation.compare import kl_per_pair, pair
from diffsound.evaluation.distances import clips_needed, frechet_distance, kernel_distance, moments
from diffsound.evaluation.features import (
    FeatureCache,
    FeatureSet,
    ScoredClip,
    WaveClip,
    clips_of_data,
    extract,
)
from diffsound.evaluation.sets import choose_examples, judge_folder, make_folder
from diffsound.files import atomic_write
from diffsound.judges.classifier import Classifier, load_classifier
from diffsound.model.bundle import resolve

# Level of the original over the noise or the other sound in dB, and masked shares of the time; the
# first of each leaves the original as it is.
NOISE_DB: tuple[float, ...] = (float("inf"), 30.0, 20.0, 10.0, 0.0, -10.0)
MASKED: tuple[float, ...] = (0.0, 0.15, 0.3, 0.45, 0.6, 0.75)
OTHER_DB: tuple[float, ...] = (float("inf"), 20.0, 10.0, 5.0, 0.0, -10.0)
_STRETCHES = 8  # a clip is masked in this many places
_TITLES = {
    "noise": "Gaussian noise (dB below the sound)",
    "mask": "masked share of the time",
    "other": "interfering sound (dB below the sound)",
}

Disturb = Callable[[np.ndarray, float, np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class StudyPoint:
    """One level of one disturbance; level 0 is no disturbance."""

    kind: str
    level: int
    amount: float | None  # dB or share; None means no noise at all
    fid: float
    kl: float
    kernel_distance: float


@dataclass(frozen=True)
class MetricStudy:
    """The points of figure 2, and whether each curve rises."""

    points: tuple[StudyPoint, ...]
    rising: dict[str, dict[str, bool]]
    clips: int
    classifier: str
    note: str

    def curve(self, kind: str, metric: str) -> list[float]:
        """The metric's values level after level."""
        return [float(getattr(p, metric)) for p in self.points if p.kind == kind]

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


def add_noise(wave: np.ndarray, snr_db: float, rng: np.random.Generator) -> np.ndarray:
    """Gaussian noise `snr_db` below the wave's level; a silent wave gets noise at -60 dB."""
    noise = rng.standard_normal(len(wave)).astype(np.float32)
    return _under(wave, noise, snr_db)


def mask_time(wave: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Silence in `share` of the time, in stretches that grow with the share."""
    starts = rng.uniform(0.0, 1.0, size=_STRETCHES)
    place = (np.arange(_STRETCHES) + starts * (1.0 - share)) / _STRETCHES
    masked = wave.copy()
    for start in place:
        at = round(start * len(wave))
        masked[at : at + round(share / _STRETCHES * len(wave))] = 0.0
    return masked


def add_sound(other: Callable[[np.random.Generator], np.ndarray]) -> Disturb:
    """A disturbance that puts a drawn sound `snr_db` below the wave's level."""

    def disturb(wave: np.ndarray, snr_db: float, rng: np.random.Generator) -> np.ndarray:
        return _under(wave, fit_length(other(rng), len(wave)), snr_db)

    return disturb


def study(
    classifier: Classifier,
    clips: Sequence[ScoredClip],
    others: Sequence[ScoredClip],
    *,
    seconds: float = 5.0,
    cache: FeatureCache | None = None,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> MetricStudy:
    """Disturb the clips level by level and measure them against themselves.

    others: where interfering sounds are drawn from (the paper: the training set). Each clip gets
    the same noise, mask positions and other sound at all levels, only more of it.
    """
    if len(clips) < 2 or not others:
        raise InputError("the study needs at least 2 clips, and others to interfere with them")
    rate = classifier.config.mel.sample_rate
    original = extract(classifier, clips, seconds=seconds, cache=cache)
    if len(original) < 2:
        raise InputError(f"only {len(original)} of {len(clips)} clips can be read")
    readable = [clip for clip in clips if clip.id not in original.failed]
    kinds = _disturbances(others, rate)
    points = []
    for kind, (amounts, disturb) in kinds.items():
        for level, amount in enumerate(amounts):
            if progress is not None:
                progress(f"{kind} {level}/{len(amounts) - 1}")
            made = original
            if level:
                disturbed = _disturbed(readable, disturb, amount, rate, seconds, seed)
                made = extract(classifier, disturbed, seconds=seconds, cache=cache)
            points.append(_point(kind, level, amount, original, made))
    rising = {
        kind: {
            metric: is_rising([getattr(p, metric) for p in points if p.kind == kind])
            for metric in ("fid", "kl", "kernel_distance")
        }
        for kind in kinds
    }
    needed = clips_needed(classifier.feature_dim)
    note = "" if len(original) >= needed else f"fewer than {needed} clips: FID is too large"
    return MetricStudy(tuple(points), rising, len(original), original.classifier, note)


def study_data(
    data: str | Path,
    out: str | Path,
    *,
    classifier: str | Path | None = None,
    split: str = "test",
    clips: int | None = None,
    seconds: float = 5.0,
    seed: int = 0,
) -> list[Path]:
    """Study clips of a prepared folder with its training clips as interfering sounds."""
    judge = load_classifier(judge_folder(resolve(None), classifier, "classifier"))
    prepared = PreparedData.open(data)
    examples, _ = choose_examples(prepared, split, clips, seed)
    chosen = clips_of_data(prepared, [prepared.position(example.id) for example in examples])
    others = clips_of_data(prepared, prepared.where(split="train")) or chosen
    out = make_folder(Path(out))
    with FeatureCache(out / "features.sqlite") as cache:
        result = study(judge, chosen, others, seconds=seconds, cache=cache, seed=seed)
    return write_study(out, result, judge, chosen[0], others, seconds=seconds, seed=seed)


def is_rising(values: Sequence[float]) -> bool:
    """Whether every value is above the one before."""
    return all(b > a for a, b in itertools.pairwise(values))


def write_study(
    folder: str | Path,
    result: MetricStudy,
    classifier: Classifier,
    example: ScoredClip,
    others: Sequence[ScoredClip],
    *,
    seconds: float = 5.0,
    seed: int = 0,
) -> list[Path]:
    """Write figure-2.png (disturbed spectrograms over the curves) and figure-2.json."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rate = classifier.config.mel.sample_rate
    pictures = {}
    for kind, (amounts, disturb) in _disturbances(others, rate).items():
        waves = [next(_disturbed([example], disturb, a, rate, seconds, seed)) for a in amounts]
        pictures[kind] = _strip(classifier, [clip.samples for clip in waves])
    data = folder / "figure-2.json"
    with atomic_write(data) as temporary:
        temporary.write_text(json.dumps(result.to_json(), indent=1) + "\n", encoding="utf-8")
    figure = folder / "figure-2.png"
    _draw(result, pictures, figure)
    return [data, figure]


def _point(
    kind: str, level: int, amount: float, original: FeatureSet, made: FeatureSet
) -> StudyPoint:
    partner = pair(original.ids, made.ids)
    distance = kernel_distance(original.features, made.features, resamples=0)
    if distance.value is None:
        raise InputError(f"the kernel distance is not available: {distance.note}")
    return StudyPoint(
        kind,
        level,
        float(amount) if np.isfinite(amount) else None,
        frechet_distance(moments(original.features), moments(made.features)),
        float(kl_per_pair(original.logits[partner], np.asarray(made.logits)).mean()),
        distance.value,
    )


def _disturbed(
    clips: Sequence[ScoredClip],
    disturb: Disturb,
    amount: float,
    rate: int,
    seconds: float,
    seed: int,
) -> Iterator[WaveClip]:
    for at, clip in enumerate(clips):
        wave = fit_length(clip.wave(rate), round(seconds * rate))
        rng = np.random.default_rng([seed, at])
        yield WaveClip(clip.id, disturb(wave, amount, rng), rate)


def _disturbances(
    others: Sequence[ScoredClip], rate: int
) -> dict[str, tuple[tuple[float, ...], Disturb]]:
    """The three aspects of section VI-C: amounts from none to most, and what is done."""
    return {
        "noise": (NOISE_DB, add_noise),
        "mask": (MASKED, mask_time),
        "other": (OTHER_DB, add_sound(_drawn_from(others, rate))),
    }


def _drawn_from(
    others: Sequence[ScoredClip], rate: int
) -> Callable[[np.random.Generator], np.ndarray]:
    def draw(rng: np.random.Generator) -> np.ndarray:
        return others[int(rng.integers(len(others)))].wave(rate)

    return draw


def _under(wave: np.ndarray, other: np.ndarray, snr_db: float) -> np.ndarray:
    """The wave with another of equal length `snr_db` below it; alone if that is infinite."""
    level = rms(other)
    if level < SILENT or np.isinf(snr_db):
        return wave
    wanted = max(rms(wave), decibels(-60.0)) / decibels(snr_db)
    return np.asarray(wave + other * np.float32(wanted / level), dtype=np.float32)


def _strip(classifier: Classifier, waves: Sequence[np.ndarray]) -> np.ndarray:
    """The waves' spectrograms side by side, RGB."""
    import torch

    front_end = MelFrontEnd(classifier.config.mel)
    with torch.inference_mode():
        mels = front_end(torch.from_numpy(np.stack(waves))).numpy()
    pictures = [np.asarray(spectrogram_image(mel, size=(120, 80))) for mel in mels]
    gap = np.full((80, 4, 3), 255, dtype=np.uint8)
    joined = [part for picture in pictures for part in (picture, gap)][:-1]
    return np.concatenate(joined, axis=1)


def _draw(result: MetricStudy, pictures: dict[str, np.ndarray], path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "eval") from error
    figure = Figure(figsize=(15, 5.5), layout="constrained")
    axes = figure.subplots(2, 3, height_ratios=(1, 2.5))
    for column, (kind, picture) in enumerate(pictures.items()):
        axes[0, column].imshow(picture, aspect="auto")
        axes[0, column].set_axis_off()
        axes[0, column].set_title(_TITLES[kind])
        points = [p for p in result.points if p.kind == kind]
        levels = [p.level for p in points]
        left = axes[1, column]
        right = left.twinx()
        left.plot(levels, [p.fid for p in points], "o-", color="tab:blue")
        right.plot(levels, [p.kl for p in points], "s--", color="tab:red")
        left.set_ylabel("FID", color="tab:blue")
        right.set_ylabel("KL", color="tab:red")
        amounts = ["none" if not p.level else f"{p.amount:g}" for p in points]
        left.set_xticks(levels, amounts)
    figure.suptitle(f"{result.clips} clips, classifier {result.classifier}")
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=110)
