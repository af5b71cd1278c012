"""Loudness (ITU-R BS.1770) and peaks."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from diffsound.errors import InputError

# The peak left after loudness normalisation, -1 dBFS as broadcast practice asks (EBU R 128).
LOUDNESS_CEILING = 10 ** (-1 / 20)

# BS.1770 measures in blocks of 400 ms.
_BLOCK_SECONDS = 0.4


def integrated_loudness(wave: NDArray[np.float32], sample_rate: int) -> float:
    """Loudness of a wave [samples] in LUFS; minus infinity for silence.

    BS.1770 is not defined below 400 ms; a shorter clip is measured as if it were repeated, which
    is its K-weighted RMS level and does not depend on how much silence would surround it.
    """
    import pyloudnorm

    block = int(np.ceil(_BLOCK_SECONDS * sample_rate))
    if len(wave) < block:
        wave = np.resize(wave, block)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # Blocks of digital silence make pyloudnorm take the logarithm of zero.
        warnings.simplefilter("ignore")
        return float(pyloudnorm.Meter(sample_rate).integrated_loudness(wave.astype(np.float64)))


def to_loudness(wave: NDArray[np.float32], sample_rate: int, target: float) -> NDArray[np.float32]:
    """Scale a wave [samples] to `target` LUFS, or as near as a peak of -1 dBFS allows.

    Silence stays silence. Only the gain changes: no compression, no limiting.
    """
    if not -70 <= target <= 0:
        raise InputError(f"the loudness must be between -70 and 0 LUFS, not {target:g}")
    measured = integrated_loudness(wave, sample_rate)
    if not np.isfinite(measured):
        return wave
    return limit_peak(wave * np.float32(10 ** ((target - measured) / 20)), LOUDNESS_CEILING)


def limit_peak(wave: NDArray[np.float32], ceiling: float) -> NDArray[np.float32]:
    """Scale a wave [samples] down as a whole if its peak is above `ceiling`."""
    peak = float(np.abs(wave).max(initial=0.0))
    return wave * np.float32(ceiling / peak) if peak > ceiling else wave
