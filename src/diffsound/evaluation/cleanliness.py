"""Faults one hears before knowing what a sound is: clipping, offset, gaps, a wrong tone colour.

None of it needs a classifier, so it shows what recognition cannot: a dog that is recognised and
yet dull, crackling or twice as loud as the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffsound.audio.loudness import integrated_loudness
from diffsound.codec.seams import changes, seam_ratio
from diffsound.data.scene_effects import frame_rms

CLIPPED_LEVEL, CLIPPED_RUN = 0.999, 3  # so many samples in a row at full scale are not chance
SILENT_FRAME_DB = -60.0
FRAME_SECONDS = 0.02
SOUNDING_DB = 25.0  # a frame this far below the loudest one still sounds
CUT_DB, CUT_FRAMES = 40.0, 2  # no sound dies away so far so fast
LOWEST_BAND = 50.0  # Hz
_WINDOW = 2048
# Bands this far below the loudest one are inaudible beside it; their exact level says nothing.
SPECTRUM_RANGE_DB = 60.0


@dataclass(frozen=True)
class Facts:
    """What is measured of one clip.

    offset_db: the constant part in dB of full scale. silence: share of frames of 20 ms below
    -60 dB of full scale. loudness: LUFS, None for silence. spectrum: share of the clip's energy in
    third-octave bands [bands], all zero for silence. cut: it ends within the clip, and not by dying
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


def measure(wave: np.ndarray, rate: int, columns: Columns) -> Facts:
    """Measure a wave, float32 [samples]."""
    loud = np.abs(wave) >= CLIPPED_LEVEL
    runs = np.convolve(loud, np.ones(CLIPPED_RUN), mode="valid") if len(wave) >= CLIPPED_RUN else 0
    levels = frame_rms(wave, max(1, int(rate * FRAME_SECONDS)))
    loudness = integrated_loudness(wave, rate)
    offset = abs(float(np.mean(wave, dtype=np.float64)))
    return Facts(
        clipped=bool(np.max(runs, initial=0) >= CLIPPED_RUN - 0.5),
        offset_db=20 * float(np.log10(max(offset, 1e-6))),
        silence=float(np.mean(levels < 10 ** (SILENT_FRAME_DB / 20))),
        loudness=loudness if np.isfinite(loudness) else None,
        spectrum=third_octaves(wave, rate),
        cut=_is_cut(levels),
        changes=changes(columns.mel(torch.from_numpy(wave)[None]), columns.stride),
    )


def _is_cut(levels: np.ndarray) -> bool:
    """Whether what sounds last is followed by next to nothing; levels: RMS [frames]."""
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
    """How a sound's energy falls with frequency: dB an octave, of third octaves [bands].

    The slope of the line through the bands within 60 dB of the loudest one; 0 for silence.
    """
    audible = spectrum > spectrum.max() * 10 ** (-SPECTRUM_RANGE_DB / 10)
    if audible.sum() < 2:
        return 0.0
    octaves = np.flatnonzero(audible) / 3
    return float(np.polyfit(octaves, 10 * np.log10(spectrum[audible]), 1)[0])


def summary(
    facts: Mapping[str, Sequence[Facts]], real: Mapping[str, Sequence[Facts]] | None
) -> dict[str, Any]:
    """One set of clips by class; `real` the same classes' real clips (None: this set is them).

    The real set's spectrum is compared with itself, every second clip with the others: what chance
    does to so few clips. Loudness is of the audible clips.
    """
    everything = [one for group in facts.values() for one in group]
    loudness = [one.loudness for one in everything if one.loudness is not None]
    distances = [
        spectrum_distance(_average(mine), _average(truth))
        for mine, truth in _halves_or_pairs(facts, real)
    ]
    return {
        "clips": len(everything),
        "clipped_share": _mean(one.clipped for one in everything),
        "offset_db": _mean(one.offset_db for one in everything),
        "silence_share": _mean(one.silence for one in everything),
        "silent_clips": len(everything) - len(loudness),
        "cut_share": _mean(one.cut for one in everything),
        "seam_ratio": seam_ratio(torch.stack([one.changes for one in everything]).sum(0))
        if everything
        else None,
        "spectrum_distance_db": _mean(distances),
        "loudness_lufs": _mean(loudness),
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


def _mean(values: Iterable[float]) -> float | None:
    known = [float(value) for value in values]
    return float(np.mean(known)) if known else None
