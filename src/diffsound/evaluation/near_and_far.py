"""Is "in the distance" heard? The same text with and without it, from the same seed.

What is far away is quieter, and duller since air takes the highs. How much is measured on pairs of
generated sounds, and beside them on real clips that the scenes' mixer sends into the distance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffsound.audio.io import resample
from diffsound.data import scene_effects
from diffsound.data.augment import decibels
from diffsound.data.loaders import item_rng
from diffsound.data.shards import PreparedData
from diffsound.data.soundscape import SceneConfig
from diffsound.evaluation.bootstrap import bootstrap_mean
from diffsound.evaluation.cleanliness import third_octaves, tilt
from diffsound.evaluation.clips import FileClip
from diffsound.evaluation.prompts import event
from diffsound.evaluation.sets import Example, Progress, write_generated
from diffsound.evaluation.setup import Setup

FAR = "in the distance"
_QUIETEST = 1e-5


@dataclass(frozen=True)
class Pair:
    """A sound near and far: two waves [samples] of one rate."""

    near: np.ndarray
    far: np.ndarray
    rate: int


def choose_events(labels: Sequence[str], count: int, seed: int) -> list[tuple[str, str]]:
    """(label, sentence) of so many classes, drawn by the seed."""
    chosen = [labels[i] for i in np.random.default_rng(seed).permutation(len(labels))[:count]]
    return [(label, (event(label).statements or (event(label).noun,))[0]) for label in chosen]


def write_near_and_far(
    bench: Setup,
    events: Sequence[tuple[str, str]],
    *,
    seconds: float,
    seed: int,
    sampling: Mapping[str, Any],
    progress: Progress | None = None,
) -> None:
    """Generate OUT/near and OUT/far: the same ids, hence the same seeds."""
    for folder, end in (("near", ""), ("far", f" {FAR}")):
        texts = [Example(_name(i), text + end, (text,)) for i, (_, text) in enumerate(events)]
        write_generated(
            bench.out / folder, bench.pipeline, texts,
            samples=1, seconds=seconds, seed=seed, sampling=sampling, progress=progress,
        )  # fmt: skip


def generated_pairs(bench: Setup, events: Sequence[tuple[str, str]]) -> list[Pair]:
    """What `write_near_and_far` made."""
    rate = bench.pipeline.sample_rate

    def wave(folder: str, number: int) -> np.ndarray:
        name = f"{_name(number)}.0"
        return FileClip(name, bench.out / folder / f"{name}.wav").wave(rate)

    return [Pair(wave("near", i), wave("far", i), rate) for i in range(len(events))]


def true_pairs(
    bench: Setup, events: Sequence[tuple[str, str]], split: str, seed: int
) -> list[Pair]:
    """A held-out clip of each class, and it as the mixer sends it into the distance."""
    rate, own = bench.pipeline.sample_rate, bench.data.index.mel.sample_rate
    quieter = np.float32(decibels(-SceneConfig().distance_db))
    pairs = []
    for number, (label, _) in enumerate(events):
        rng = item_rng(seed, 0, number)
        clip = int(rng.choice(clips_of_label(bench.data, split, label)))
        wave = resample(bench.data.wave(clip), own, rate)
        far = scene_effects.distant(wave, rate, round(scene_effects.TAIL * rate), rng)
        pairs.append(Pair(wave, far * quieter, rate))
    return pairs


def distance(pairs: Sequence[Pair], seed: int = 0) -> dict[str, Any]:
    """How much quieter and duller the far sound of each pair is, with intervals."""
    level = [_level(pair.far, pair.rate) - _level(pair.near, pair.rate) for pair in pairs]
    slope = [
        tilt(third_octaves(pair.far, pair.rate)) - tilt(third_octaves(pair.near, pair.rate))
        for pair in pairs
    ]
    both = [quiet < 0 and dull < 0 for quiet, dull in zip(level, slope, strict=True)]
    return {
        "pairs": len(pairs),
        "level_db": _mean(level, seed),
        "tilt_db_per_octave": _mean(slope, seed),
        "quieter_and_duller": float(np.mean(both)) if both else None,
    }


def clips_of_label(data: PreparedData, split: str, label: str) -> list[int]:
    """The clips of a split whose only label is this one."""
    found = data.where(split=split, labels=[label])
    return [i for i in found if data.records[i].labels == (label,)]


def _name(number: int) -> str:
    return f"far-{number:03d}"


def _mean(values: Sequence[float], seed: int) -> dict[str, float | None]:
    interval = bootstrap_mean(np.asarray(values), seed=seed) if values else None
    return {
        "mean": float(np.mean(values)) if values else None,
        "low": None if interval is None else interval.low,
        "high": None if interval is None else interval.high,
    }


def _level(wave: np.ndarray, rate: int) -> float:
    """dB of full scale, of the parts that sound."""
    return 20 * float(np.log10(max(scene_effects.active_rms(wave, rate), _QUIETEST)))
