"""Whether clips of known classes are recognised, how much they vary, and whether they are clean.

Clean: without faults that are heard before the sound is recognised, such as clipping, an offset,
gaps or a wrong tone colour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffsound.audio.mixing import frame_rms, integrated_loudness
from diffsound.codec.losses import changes, seam_ratio
from diffsound.evaluation.metrics import RESAMPLES, TAILS, Score

TOP = (1, 5)  # "recognised" means among this many likeliest classes
_CONFUSIONS = 20  # pairs of classes that a report lists
SILENT_DB = -60.0  # RMS, or level of a frame, that nobody hears at a normal volume
CLIPPED_LEVEL, CLIPPED_RUN = 0.999, 3  # this many consecutive samples at full scale are no accident
FRAME_SECONDS = 0.02
SOUNDING_DB = 25.0  # a frame this far below the loudest one still sounds
CUT_DB, CUT_FRAMES = 40.0, 2  # no sound decays this far this fast
LOWEST_BAND = 50.0  # Hz
_WINDOW = 2048
# Bands this far below the loudest one are inaudible beside it; their exact level says nothing.
SPECTRUM_RANGE_DB = 60.0


def hits(logits: np.ndarray, targets: np.ndarray, k: int) -> np.ndarray:
    """Whether each clip's class is among the k likeliest: logits [N, classes] -> bool [N]."""
    best = np.argsort(-np.asarray(logits), axis=1, kind="stable")[:, :k]
    return np.asarray((best == targets[:, None]).any(axis=1))


def balanced(right: np.ndarray, targets: np.ndarray, name: str, seed: int = 0) -> Score:
    """The mean over classes of the share of hits, with its interval; right bool [N]."""
    _, place = np.unique(targets, return_inverse=True)
    count = np.bincount(place)
    share = np.bincount(place, weights=right) / count
    # Classes are resampled, and then clips within each: how many of them are hits.
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(count), size=(RESAMPLES, len(count)))
    means = (rng.binomial(count[drawn], share[drawn]) / count[drawn]).mean(axis=1)
    low, high = np.quantile(means, TAILS)
    return Score(name, float(share.mean()), "higher", float(low), float(high))


def spread(
    real: np.ndarray, real_of: np.ndarray, made: np.ndarray, made_of: np.ndarray
) -> dict[str, Any]:
    """How much two sounds of a class differ, relative to two real clips of it; mean over classes.

    real, made: features [N, D], [M, D]; real_of, made_of: their classes. 1: as varied as real
    clips; 0: always the same sound. Features are divided by their deviation over the real clips.
    Classes with fewer than two clips on either side do not count.
    """
    scale = 1.0 / np.maximum(np.std(real, axis=0), 1e-6)

    def mean_distance(features: np.ndarray) -> float:
        apart = np.linalg.norm(features[:, None] - features[None], axis=2)
        return float(apart.sum() / (len(features) * (len(features) - 1)))

    ratios = []
    for place in np.unique(made_of):
        ours, theirs = made[made_of == place] * scale, real[real_of == place] * scale
        if min(len(ours), len(theirs)) > 1 and (usual := mean_distance(theirs)):
            ratios.append(mean_distance(ours) / usual)
    return {"ratio": float(np.mean(ratios)) if ratios else None, "classes": len(ratios)}


@dataclass(frozen=True)
class Named:
    """What a judge made of a set: ids [N], features [N, D], logits [N, labels]."""

    ids: tuple[str, ...]
    features: np.ndarray
    logits: np.ndarray


@dataclass(frozen=True)
class Opinion:
    """What one judge made of every row.

    classes: those asked for, as places in the judge's own `labels`; targets: the place of each
    clip's class, int [N] by row.
    """

    labels: tuple[str, ...]
    classes: tuple[int, ...]
    heard: Mapping[str, Named]
    targets: Mapping[str, np.ndarray]
    scores: Mapping[str, Mapping[str, Score]]

    def to_json(self) -> dict[str, Any]:
        """The judge's part of a report."""
        rows = {
            row: {
                "scores": {name: score.to_json() for name, score in self.scores[row].items()},
                "clips": len(found.ids),
            }
            for row, found in self.heard.items()
        }
        real, made = (self.heard[row].features for row in ("real", "generated"))
        return {
            "rows": rows,
            "ratios": self._ratios(),
            "classes": self._by_class(),
            "spread": spread(real, self.targets["real"], made, self.targets["generated"]),
            "confusions": self._confusions(),
        }

    def confusion(self, row: str) -> np.ndarray:
        """How often each class asked for is heard as each label: int [classes, labels]."""
        logits = self.heard[row].logits
        counts = np.zeros((len(self.classes), logits.shape[1]), dtype=int)
        places = {place: at for at, place in enumerate(self.classes)}
        for target, guess in zip(self.targets[row], np.argmax(logits, axis=1), strict=True):
            counts[places[target], guess] += 1
        return counts

    def _ratios(self) -> dict[str, dict[str, float | None]]:
        """Every row's shares relative to the real clips'."""
        real = {f"top-{k}": self.scores["real"][f"top-{k}"].value for k in TOP}
        return {
            row: {
                name: (scores[name].value or 0.0) / of if of else None for name, of in real.items()
            }
            for row, scores in self.scores.items()
            if row != "real"
        }

    def _by_class(self) -> list[dict[str, Any]]:
        """Each class's shares of hits, the worst of the generated ones first."""
        entries = []
        for place in self.classes:
            entry: dict[str, Any] = {"label": self.labels[place]}
            for row in ("real", "codec", "generated"):
                mine = self.targets[row] == place
                logits, targets = self.heard[row].logits[mine], self.targets[row][mine]
                shares = {f"top-{k}": float(hits(logits, targets, k).sum()) for k in TOP}
                clips = int(mine.sum())
                entry[row] = {"clips": clips} | {k: n / max(clips, 1) for k, n in shares.items()}
            mine = self.targets["generated"] == place
            guesses = np.argmax(self.heard["generated"].logits[mine], axis=1)
            entry["heard_as"] = label_counts(self.labels, guesses)
            entries.append(entry)
        return sorted(entries, key=lambda e: (e["generated"]["top-1"], e["generated"]["top-5"]))

    def _confusions(self) -> list[dict[str, Any]]:
        """The pairs most often confused: asked for, heard as, how often."""
        pairs: list[dict[str, Any]] = [
            {"asked": self.labels[place], "heard": self.labels[guess], "times": int(times)}
            for place, line in zip(self.classes, self.confusion("generated"), strict=True)
            for guess, times in enumerate(line)
            if times and guess != place
        ]
        return sorted(pairs, key=lambda pair: -pair["times"])[:_CONFUSIONS]


def label_counts(labels: Sequence[str], guesses: np.ndarray) -> dict[str, int]:
    """How often each label was guessed, the commonest first; guesses: places in `labels` [N]."""
    places, counts = np.unique(guesses, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return {labels[places[i]]: int(counts[i]) for i in order}


@dataclass(frozen=True)
class Facts:
    """What is measured of one clip.

    offset_db: the constant part in dB of full scale. silence: share of frames of 20 ms below
    -60 dB of full scale. loudness: LUFS, None for silence. spectrum: share of the clip's energy in
    third-octave bands [bands], all zero for silence. cut: it ends within the clip without dying
    away. changes: of its mel at the columns' edges and elsewhere (`codec/losses.py`).
    """

    clipped: bool
    offset_db: float
    silence: float
    loudness: float | None
    spectrum: np.ndarray
    cut: bool
    changes: Tensor


def measure_clip(
    wave: np.ndarray, rate: int, front_end: Callable[[Tensor], Tensor], stride: int
) -> Facts:
    """Measure a wave, float32 [samples].

    front_end, stride: of the codec: wave [1, samples] to mel [1, n_mels, L], frames per column.
    """
    loud = np.abs(wave) >= CLIPPED_LEVEL
    runs = np.convolve(loud, np.ones(CLIPPED_RUN), mode="valid") if len(wave) >= CLIPPED_RUN else 0
    levels = frame_rms(wave, max(1, int(rate * FRAME_SECONDS)))
    loudness = integrated_loudness(wave, rate)
    offset = abs(float(np.mean(wave, dtype=np.float64)))
    return Facts(
        clipped=bool(np.max(runs, initial=0) >= CLIPPED_RUN - 0.5),
        offset_db=20 * float(np.log10(max(offset, 1e-6))),
        silence=float(np.mean(levels < 10 ** (SILENT_DB / 20))),
        loudness=loudness if np.isfinite(loudness) else None,
        spectrum=third_octaves(wave, rate),
        cut=_is_cut(levels),
        changes=changes(front_end(torch.from_numpy(wave)[None]), stride),
    )


def _is_cut(levels: np.ndarray) -> bool:
    """Whether the last sounding frame is followed by near silence; levels: RMS [frames]."""
    sounding = np.flatnonzero(levels > levels.max(initial=0.0) * 10 ** (-SOUNDING_DB / 20))
    after = int(sounding[-1]) + CUT_FRAMES if len(sounding) else len(levels)
    if after >= len(levels):
        return False
    return bool(levels[after] < levels[sounding[-1]] * 10 ** (-CUT_DB / 20))


def third_octaves(wave: np.ndarray, rate: int) -> np.ndarray:
    """Shares of a wave's energy in third-octave bands from 50 Hz to the highest whole one: [bands].

    The long-term average spectrum, without the wave's level.
    """
    padded = np.pad(np.asarray(wave, dtype=np.float64), (0, max(0, _WINDOW - len(wave))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[:: _WINDOW // 2]
    power = np.square(np.abs(np.fft.rfft(frames * np.hanning(_WINDOW), axis=1))).mean(axis=0)
    edges = band_edges(rate)
    places = np.searchsorted(np.fft.rfftfreq(_WINDOW, 1 / rate), edges)
    bands = np.add.reduceat(power, places)[:-1]
    return np.asarray(bands / max(bands.sum(), 1e-30))


def band_edges(rate: int) -> np.ndarray:
    """Edges in Hz of the third octaves between 50 Hz and half the rate: [bands + 1]."""
    count = int(np.floor(3 * np.log2(rate / 2 / LOWEST_BAND)))
    return np.asarray(LOWEST_BAND * 2 ** (np.arange(count + 1) / 3))


def spectrum_distance(one: np.ndarray, other: np.ndarray) -> float:
    """RMS difference in dB over third-octave bands of two average spectra [bands]."""
    levels = []
    for spectrum in (one, other):
        floor = spectrum.max() * 10 ** (-SPECTRUM_RANGE_DB / 10)
        levels.append(10 * np.log10(np.maximum(spectrum, max(floor, 1e-30))))
    return float(np.sqrt(np.square(levels[0] - levels[1]).mean()))


def tilt(spectrum: np.ndarray) -> float:
    """How a sound's energy falls with frequency: dB per octave, of third octaves [bands].

    The slope of the line through the bands within 60 dB of the loudest one; 0 for silence.
    """
    audible = spectrum > spectrum.max() * 10 ** (-SPECTRUM_RANGE_DB / 10)
    if audible.sum() < 2:
        return 0.0
    octaves = np.flatnonzero(audible) / 3
    return float(np.polyfit(octaves, 10 * np.log10(spectrum[audible]), 1)[0])


def summarise(
    facts: Mapping[str, Sequence[Facts]], real: Mapping[str, Sequence[Facts]] | None
) -> dict[str, Any]:
    """One set of clips by class; `real` the same classes' real clips (None: this set is them).

    The real set's spectrum is compared with itself, every second clip with the others, which shows
    what chance does to so few clips. Loudness is of the audible clips.
    """
    everything = [one for group in facts.values() for one in group]
    loudness = [one.loudness for one in everything if one.loudness is not None]
    distances = []
    for label, group in facts.items():
        mine, truth = (group[::2], group[1::2]) if real is None else (group, real.get(label, ()))
        if mine and truth:
            averages = (np.mean([one.spectrum for one in part], axis=0) for part in (mine, truth))
            distances.append(spectrum_distance(*averages))
    return {
        "clips": len(everything),
        "clipped_share": _mean_or_none(one.clipped for one in everything),
        "offset_db": _mean_or_none(one.offset_db for one in everything),
        "silence_share": _mean_or_none(one.silence for one in everything),
        "silent_clips": len(everything) - len(loudness),
        "cut_share": _mean_or_none(one.cut for one in everything),
        "seam_ratio": seam_ratio(torch.stack([one.changes for one in everything]).sum(0))
        if everything
        else None,
        "spectrum_distance_db": _mean_or_none(distances),
        "loudness_lufs": _mean_or_none(loudness),
        "loudness_spread_lu": float(np.std(loudness)) if loudness else None,
    }


def _mean_or_none(values: Iterable[float]) -> float | None:
    known = [float(value) for value in values]
    return float(np.mean(known)) if known else None
