"""What good figures may hide.

Of a set: silence, one sound over and over, copies of training clips. Of a clip: faults that are
heard before the sound is recognised, such as clipping, an offset, gaps or a wrong tone colour.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffsound.audio.mixing import frame_rms, integrated_loudness
from diffsound.codec.seams import changes, seam_ratio
from diffsound.data.duplicates import BANDS, CELLS, MOVEMENT, near_duplicates
from diffsound.errors import InputError
from diffsound.evaluation.distances import nearest
from diffsound.evaluation.features import FeatureSet

SILENT_DB = -60.0  # RMS, or level of a frame, that nobody hears at a normal volume
# A clip closer to a training clip than all but this share of real unseen clips is suspicious.
SUSPICIOUS = 0.01
# Fingerprints whose detail correlates above this are one recording. Lengths cannot be compared here
# (a generated clip has its own), so it is stricter than for duplicates: of 371 unseen ESC-50 clips
# against 3 686 training clips none passes (at 0.85: four); of training clips at 0.6 of their level,
# shifted and with errors of 5 dB in every cell of the mel, 80 % do.
SAME_DETAIL = 0.9
NEAREST = 8  # neighbours that a report names and a page shows
_BLOCK = 2048

CLIPPED_LEVEL, CLIPPED_RUN = 0.999, 3  # this many consecutive samples at full scale are no accident
FRAME_SECONDS = 0.02
SOUNDING_DB = 25.0  # a frame this far below the loudest one still sounds
CUT_DB, CUT_FRAMES = 40.0, 2  # no sound decays this far this fast
LOWEST_BAND = 50.0  # Hz
_WINDOW = 2048
# Bands this far below the loudest one are inaudible beside it; their exact level says nothing.
SPECTRUM_RANGE_DB = 60.0


@dataclass(frozen=True)
class Duplicate:
    """Clips of one set that are the same sound; `identical` if sample by sample."""

    ids: tuple[str, ...]
    identical: bool


@dataclass(frozen=True)
class Neighbour:
    """A generated clip and the training clip nearest to it.

    distance: in features, each divided by its deviation over the training clips.
    same_recording: the training clip whose fingerprint it shares, if any (not by the classifier).
    suspicious: closer than nearly all real clips outside the training set are to theirs.
    """

    id: str
    nearest: str
    distance: float
    suspicious: bool
    same_recording: str | None


@dataclass(frozen=True)
class Memorisation:
    """Neighbours of all generated clips, the most suspicious first.

    threshold: the distance below which a clip is suspicious; expected: the share of real unseen
    clips below it. A share of generated clips well above that means copying.
    """

    neighbours: tuple[Neighbour, ...]
    threshold: float
    expected: float

    @property
    def suspicious(self) -> float:
        """Share of generated clips below the threshold."""
        return sum(one.suspicious for one in self.neighbours) / max(1, len(self.neighbours))

    @property
    def copies(self) -> list[Neighbour]:
        """Generated clips that are a training clip's recording."""
        return [one for one in self.neighbours if one.same_recording is not None]


def silent_clips(clips: FeatureSet) -> list[str]:
    """Ids of the clips whose RMS is below `SILENT_DB` of full scale."""
    return [clips.ids[at] for at in np.flatnonzero(clips.level < SILENT_DB)]


def duplicate_clips(clips: FeatureSet) -> list[Duplicate]:
    """Groups of clips that are one sound, exactly or nearly; silent clips are not among them."""
    heard = np.flatnonzero(clips.level >= SILENT_DB)
    by_key: dict[str, list[str]] = defaultdict(list)
    for at in heard:
        by_key[clips.keys[at]].append(clips.ids[at])
    found = [Duplicate(tuple(ids), identical=True) for ids in by_key.values() if len(ids) > 1]
    # Of identical clips, one stands for all in the search for near ones.
    first = {ids[0] for ids in by_key.values()}
    kept = [at for at in heard if clips.ids[at] in first]
    groups = near_duplicates(
        [clips.ids[at] for at in kept], clips.sounds[kept], clips.seconds[kept].tolist()
    )
    return found + [Duplicate(tuple(group.ids), identical=False) for group in groups]


def memorisation(
    generated: FeatureSet, training: FeatureSet, unseen: FeatureSet | None = None
) -> Memorisation:
    """Search for copies of training clips among generated ones.

    unseen: real clips that were not trained on, which set what distance is normal. Without them
    the training clips do, each against the others; these are closer, since some share a recording.
    """
    for clips in (training,) if unseen is None else (training, unseen):
        if clips.classifier != generated.classifier:
            raise InputError("the sets were measured by different classifiers; use one for all")
    if len(training) < 2 or not len(generated) or (unseen is not None and not len(unseen)):
        raise InputError("a search for copies needs generated clips and at least 2 training clips")
    scale = 1.0 / np.maximum(np.asarray(training.features).std(axis=0), 1e-6)
    known = training.features * scale
    if unseen is None:
        _, normal = nearest(known, known, itself=True)
    else:
        _, normal = nearest(unseen.features * scale, known)
    threshold = float(np.quantile(normal, SUSPICIOUS))
    places, distances = nearest(generated.features * scale, known)
    same = _same_recording(generated, training)
    neighbours = [
        Neighbour(
            id=generated.ids[at],
            nearest=training.ids[places[at]],
            distance=float(distances[at]),
            suspicious=bool(distances[at] < threshold),
            same_recording=None if same[at] < 0 else training.ids[same[at]],
        )
        for at in range(len(generated))
    ]
    neighbours.sort(key=lambda one: (one.same_recording is None, one.distance))
    return Memorisation(tuple(neighbours), threshold, float((normal < threshold).mean()))


def check_set(
    generated: FeatureSet, training: FeatureSet | None, unseen: FeatureSet | None
) -> dict[str, Any]:
    """All checks as JSON; copies are searched for when training clips are given."""
    duplicates = duplicate_clips(generated)
    found: dict[str, Any] = {
        "clips": len(generated),
        "unreadable": dict(generated.failed),
        "silent": silent_clips(generated),
        "duplicates": [
            {"ids": list(group.ids), "identical": group.identical} for group in duplicates
        ],
    }
    if training is not None:
        memory = memorisation(generated, training, unseen)
        found["copies"] = [{"id": one.id, "training": one.same_recording} for one in memory.copies]
        found["suspicious_share"] = memory.suspicious
        found["expected_share"] = memory.expected
        found["suspicious_distance"] = memory.threshold
        found["nearest"] = [asdict(one) for one in memory.neighbours[:NEAREST]]
    return found


def _same_recording(generated: FeatureSet, training: FeatureSet) -> np.ndarray:
    """For each generated clip the training clip with its fingerprint, or -1: int [N]."""
    heard = np.asarray(generated.level) >= SILENT_DB
    known = [_unit(values) for values in _fingerprints(training.sounds)]
    found = np.full(len(generated), -1)
    for at in range(0, len(generated), _BLOCK):
        rows = slice(at, at + _BLOCK)
        movement, detail = (_unit(values) for values in _fingerprints(generated.sounds[rows]))
        moves, details = movement @ known[0].T, detail @ known[1].T
        likeness = np.where((moves > MOVEMENT) & (details > SAME_DETAIL), details, -1.0)
        best = likeness.argmax(axis=1)
        same = (likeness.max(axis=1) > 0) & heard[rows]
        found[rows] = np.where(same, best, -1)
    return found


def _fingerprints(sounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Movement and detail (movement without what all bands share) of fingerprints [N, 256]."""
    movement = np.asarray(sounds, dtype=np.float32)
    grid = movement.reshape(len(movement), BANDS, CELLS)
    detail = (grid - grid.mean(axis=1, keepdims=True)).reshape(len(movement), -1)
    return movement, detail


def _unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9))


@dataclass(frozen=True)
class Facts:
    """What is measured of one clip.

    offset_db: the constant part in dB of full scale. silence: share of frames of 20 ms below
    -60 dB of full scale. loudness: LUFS, None for silence. spectrum: share of the clip's energy in
    third-octave bands [bands], all zero for silence. cut: it ends within the clip without dying
    away. changes: of its mel at the columns' edges and elsewhere (`codec/seams.py`).
    """

    clipped: bool
    offset_db: float
    silence: float
    loudness: float | None
    spectrum: np.ndarray
    cut: bool
    changes: Tensor


@dataclass(frozen=True)
class Columns:
    """Where a codec's columns lie: mel: wave [1, samples] to mel [1, n_mels, L]; stride: frames."""

    mel: Callable[[Tensor], Tensor]
    stride: int


def measure_clip(wave: np.ndarray, rate: int, columns: Columns) -> Facts:
    """Measure a wave, float32 [samples]."""
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
        changes=changes(columns.mel(torch.from_numpy(wave)[None]), columns.stride),
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


@dataclass(frozen=True)
class Seam:
    """How a wave joins its own beginning: every step there as a share of those elsewhere in it.

    1 is as large as all but a hundredth of the steps elsewhere. level, spectrum: between what comes
    before and what comes after. dip: how far the level falls at the seam. jump: what linear
    prediction does not explain, such as a click or a jump in phase.
    """

    level: float
    spectrum: float
    dip: float
    jump: float

    @property
    def worst(self) -> float:
        return max(self.level, self.spectrum, self.dip, self.jump)


def seam(wave: np.ndarray, rate: int) -> Seam:
    """Compare the place where a wave [samples] of at least 0.5 s is repeated with other places."""
    side, near = round(0.05 * rate), round(0.002 * rate)
    if len(wave) < 10 * side:
        raise InputError("a seam is measured in at least half a second of sound")
    ring = np.pad(np.asarray(wave, dtype=np.float64), 2 * side, mode="wrap")
    # The seam comes first; elsewhere keeps away from it.
    places = 2 * side + np.append(0, np.arange(2 * side, len(wave) - 2 * side, side // 5))
    energy = np.append(0.0, np.cumsum(np.square(ring)))

    def level(start: np.ndarray, length: int) -> np.ndarray:
        mean = (energy[start + length] - energy[start]) / length
        return np.asarray(10 * np.log10(np.maximum(mean, 10 ** (SILENT_DB / 10))))

    before, after = level(places - side, side), level(places, side)
    spectra = [
        10 * np.log10(_bands(ring, start, side, rate) + 10 ** (SILENT_DB / 10))
        for start in (places - side, places)
    ]
    unexplained = np.append(0.0, np.cumsum(np.square(_unpredicted(ring))))
    jumps = unexplained[places + near] - unexplained[places - near]
    steps = {
        "level": np.abs(after - before),
        "spectrum": np.sqrt(np.square(spectra[1] - spectra[0]).mean(axis=1)),
        "dip": np.maximum(np.minimum(before, after) - level(places - near, 2 * near), 0.0),
        "jump": np.sqrt(jumps),
    }
    return Seam(**{name: _share(values) for name, values in steps.items()})


def _share(values: np.ndarray) -> float:
    """The first value as a share of what all but a hundredth of the others stay below."""
    return float(values[0] / max(float(np.quantile(values[1:], 0.99)), 1e-9))


def _bands(ring: np.ndarray, starts: np.ndarray, length: int, rate: int) -> np.ndarray:
    """Power in octaves of the windows of a wave that begin at `starts`: [places, bands]."""
    frames = np.lib.stride_tricks.sliding_window_view(ring, length)[starts] * np.hanning(length)
    power = np.square(np.abs(np.fft.rfft(frames, axis=1))) / np.square(length / 2)
    edges = band_edges(rate)[3::3]  # the lowest octave has too few cycles in a window
    return np.add.reduceat(power, np.searchsorted(np.fft.rfftfreq(length, 1 / rate), edges), axis=1)


def _unpredicted(wave: np.ndarray, order: int = 32) -> np.ndarray:
    """What a linear prediction of every sample from those before it leaves: [samples]."""
    spectrum = np.square(np.abs(np.fft.rfft(wave, 2 * len(wave))))
    correlation = np.fft.irfft(spectrum)[: order + 1]
    lags = np.abs(np.subtract.outer(np.arange(order), np.arange(order)))
    normal = correlation[lags] + np.eye(order) * (1e-6 * correlation[0] + 1e-12)
    weights = np.linalg.solve(normal, correlation[1:])
    return np.asarray(np.convolve(wave, np.append(1.0, -weights))[: len(wave)])


def summarise(
    facts: Mapping[str, Sequence[Facts]], real: Mapping[str, Sequence[Facts]] | None
) -> dict[str, Any]:
    """One set of clips by class; `real` the same classes' real clips (None: this set is them).

    The real set's spectrum is compared with itself, every second clip with the others, which shows
    what chance does to so few clips. Loudness is of the audible clips.
    """
    everything = [one for group in facts.values() for one in group]
    loudness = [one.loudness for one in everything if one.loudness is not None]
    distances = [
        spectrum_distance(_average(mine), _average(truth))
        for mine, truth in _halves_or_pairs(facts, real)
    ]
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


def _halves_or_pairs(
    facts: Mapping[str, Sequence[Facts]], real: Mapping[str, Sequence[Facts]] | None
) -> Iterable[tuple[Sequence[Facts], Sequence[Facts]]]:
    for label, group in facts.items():
        mine, truth = (group[::2], group[1::2]) if real is None else (group, real.get(label, ()))
        if mine and truth:
            yield mine, truth


def _average(facts: Sequence[Facts]) -> np.ndarray:
    return np.asarray(np.mean([one.spectrum for one in facts], axis=0))


def _mean_or_none(values: Iterable[float]) -> float | None:
    known = [float(value) for value in values]
    return float(np.mean(known)) if known else None
