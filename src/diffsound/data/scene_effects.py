"""What the mixer does to a clip: find its sound, cut it, extend it, repeat it.

Waves are float32 [samples]. Levels are those of the sounding parts, since the pauses of a barking
dog say nothing about how loud it barks.
"""

from __future__ import annotations

import numpy as np

from diffsound.audio.mixing import FRAME_SECONDS, SILENCE_DB, SILENT, frame_rms


def active_span(wave: np.ndarray, rate: int) -> tuple[int, int] | None:
    """First and past-the-last sample of the audible part; None for a silent clip."""
    frame = max(1, int(rate * FRAME_SECONDS))
    levels = frame_rms(wave, frame)
    if levels.max(initial=0.0) < SILENT:
        return None
    heard = np.flatnonzero(levels > levels.max() * 10 ** (-SILENCE_DB / 20))
    return int(heard[0]) * frame, min(len(wave), (int(heard[-1]) + 1) * frame)


def is_texture(wave: np.ndarray, rate: int, seconds: float = 2.0, range_db: float = 12.0) -> bool:
    """Whether a clip can be a background: long enough, and never far below its own level.

    This is measured, not looked up by label, so that it works for any recordings.
    """
    if len(wave) < seconds * rate:
        return False
    levels = frame_rms(wave, max(1, int(rate * 0.1)))[:-1]  # the last frame may be partly padding
    low, high = np.percentile(levels, (5, 95))
    return bool(high > SILENT and low > high * 10 ** (-range_db / 20))


def loudest_start(wave: np.ndarray, samples: int) -> int:
    """Where the `samples` with the most energy start, so that a cut clip contains its event."""
    if len(wave) <= samples:
        return 0
    energy = np.concatenate([[0.0], np.cumsum(np.square(wave, dtype=np.float64))])
    return int(np.argmax(energy[samples:] - energy[:-samples]))


def lasting(wave: np.ndarray, samples: int, overlap: int, rng: np.random.Generator) -> np.ndarray:
    """A texture from a random point on, repeated with cross-fades to `samples`."""
    if len(wave) >= samples:
        start = int(rng.integers(0, len(wave) - samples + 1))
        return wave[start : start + samples]
    overlap = min(overlap, len(wave) // 3)
    step = len(wave) - overlap
    start = int(rng.integers(0, step))
    needed = start + overlap + samples
    out = np.zeros(needed + len(wave), dtype=np.float32)
    # Both ends of every copy are faded; overlapping ends add up to a constant level.
    piece = equal_power_ends(wave, overlap)
    for at in range(0, needed, step):
        out[at : at + len(piece)] += piece
    # The first ramp has no partner, so it is skipped too.
    return out[start + overlap : needed]


def equal_power_ends(wave: np.ndarray, ramp: int) -> np.ndarray:
    """Sine ramps at both ends: two unrelated parts crossfaded by them keep their power."""
    wave = np.array(wave, dtype=np.float32)
    if ramp:
        rising = np.sin(0.5 * np.pi * (np.arange(ramp) + 0.5) / ramp).astype(np.float32)
        wave[:ramp] *= rising
        wave[-ramp:] *= rising[::-1]
    return wave


def repeated(wave: np.ndarray, starts: np.ndarray, gains: np.ndarray) -> np.ndarray:
    """Copies of the wave at `starts` (ascending, not overlapping), each with its gain."""
    out = np.zeros(int(starts[-1]) + len(wave), dtype=np.float32)
    for start, gain in zip(starts, gains, strict=True):
        out[start : start + len(wave)] += wave * np.float32(gain)
    return out
