"""Augmentation of waves: pure functions of (wave, settings, generator).

Waves are float32 [samples], mono, nominally within [-1, 1].
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from diffsound.config import Config

PEAK = 0.99  # what every augmented wave is kept within, so that 16-bit writing never clips
SILENT = 1e-5  # a wave whose RMS is below this (-100 dBFS) has no level to normalise


class AugmentConfig(Config):
    """What may happen to a clip on its way into a batch."""

    # Clips longer than the window are cropped at random, shorter ones placed at random in it. The
    # rest of the window: silence, the clip again, or other clips of the set one after another
    # (a codec or vocoder learns nothing from silence).
    fill: Literal["silence", "loop", "chain"] = "silence"
    # How often "chain" leaves the rest silent all the same: short sounds end in silence.
    chain_silence: float = Field(default=0.0, ge=0.0, le=1.0)
    # A random circular shift of the whole window; right for textures, wrong for onsets.
    roll: bool = False
    gain_db: tuple[float, float] = (-6.0, 3.0)
    # Largest change of speed (tape-like: pitch and tempo together); 0.06 is one semitone.
    speed: float = Field(default=0.0, ge=0.0, le=0.5)
    # How often the speed is changed. Not always: a resampled clip lacks the highest frequencies
    # (the filter's slope, and the whole top where it was slowed down), and a model that only ever
    # hears such clips fails on real ones.
    speed_probability: float = Field(default=0.5, ge=0.0, le=1.0)
    # How often another clip is mixed under this one, and how far below it.
    mix_probability: float = Field(default=0.0, ge=0.0, le=1.0)
    mix_snr_db: tuple[float, float] = (0.0, 15.0)

    @model_validator(mode="after")
    def _ordered(self) -> AugmentConfig:
        for name in ("gain_db", "mix_snr_db"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name} must go from low to high")
        return self


def random_window(wave: np.ndarray, samples: int, rng: np.random.Generator) -> np.ndarray:
    """A random crop of a longer wave; a shorter one placed at random in silence. [samples]"""
    spare = len(wave) - samples
    at = int(rng.integers(0, abs(spare) + 1))
    if spare >= 0:
        return wave[at : at + samples]
    window = np.zeros(samples, dtype=np.float32)
    window[at : at + len(wave)] = wave
    return window


def loop_to(wave: np.ndarray, samples: int) -> np.ndarray:
    """The wave repeated until it holds at least `samples` (an empty wave gives silence)."""
    if len(wave) == 0:
        return np.zeros(samples, dtype=np.float32)
    return np.tile(wave, -(-samples // len(wave))) if len(wave) < samples else wave


def change_speed(wave: np.ndarray, factor: float) -> np.ndarray:
    """Play the wave `factor` times as fast, pitch included: [samples] -> about samples/factor."""
    import soxr

    if factor == 1.0 or len(wave) == 0:
        return wave
    # soxr works with the ratio only. Not its quicker "LQ": that filter takes the top fifth away.
    return np.asarray(soxr.resample(wave, factor, 1.0, quality="MQ"), dtype=np.float32)


def draw_speed(limit: float, rng: np.random.Generator) -> float:
    """A factor log-uniform between 1/(1 + limit) and 1 + limit."""
    return float(np.exp(rng.uniform(-1.0, 1.0) * np.log1p(limit)))


def rms(wave: np.ndarray) -> float:
    """Root mean square of a wave; 0 for an empty one."""
    return float(np.sqrt(np.mean(np.square(wave, dtype=np.float64)))) if len(wave) else 0.0


def decibels(db: float) -> float:
    """The amplitude factor of a gain in dB."""
    return float(10.0 ** (db / 20.0))


def mix_at(wave: np.ndarray, other: np.ndarray, snr_db: float) -> np.ndarray:
    """`other` added so that its RMS is `snr_db` below that of `wave`; both [samples]."""
    level, under = rms(wave), rms(other)
    if level < SILENT or under < SILENT:
        return wave + other
    return wave + other * np.float32(level / under / decibels(snr_db))


def keep_peak(wave: np.ndarray, peak: float = PEAK) -> np.ndarray:
    """The wave, scaled down as a whole if it would exceed `peak`."""
    top = float(np.abs(wave).max(initial=0.0))
    return wave * np.float32(peak / top) if top > peak else wave


def fade(wave: np.ndarray, fade_in: int, fade_out: int) -> np.ndarray:
    """A copy with raised-cosine ramps at both ends, each at most half of the wave."""
    wave = np.array(wave, dtype=np.float32)
    half = len(wave) // 2
    fade_in, fade_out = min(fade_in, half), min(fade_out, half)
    if fade_in:
        wave[:fade_in] *= _ramp(fade_in)
    if fade_out:
        wave[-fade_out:] *= _ramp(fade_out)[::-1]
    return wave


def _ramp(samples: int) -> np.ndarray:
    phase = (np.arange(samples) + 0.5) / samples
    return (0.5 - 0.5 * np.cos(np.pi * phase)).astype(np.float32)
