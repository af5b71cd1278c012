"""Augmentation of waves, as pure functions of (wave, settings, generator).

Waves are float32 [samples], mono, nominally within [-1, 1].
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from diffsound.config import Config

# How often the speed is changed. Not always: a resampled clip lacks the highest frequencies (the
# filter's slope, and the whole top where it was slowed down), and a model that only ever hears such
# clips fails on real ones.
SPEED_SHARE = 0.5


class AugmentConfig(Config):
    """How a clip is varied on its way into a batch.

    fill: what fills a window that is longer than the clip: silence, the clip repeated, or other
        clips of the set one after another (a codec or vocoder learns nothing from silence).
    chain_silence: how often "chain" leaves the rest silent, since short sounds end in silence.
    gain_db: range of the change of level.
    speed: largest change of speed, tape-like: pitch and tempo together; 0.06 is one semitone.
    """

    fill: Literal["silence", "loop", "chain"] = "silence"
    chain_silence: float = Field(default=0.0, ge=0.0, le=1.0)
    gain_db: tuple[float, float] = (-6.0, 3.0)
    speed: float = Field(default=0.0, ge=0.0, le=0.5)

    @model_validator(mode="after")
    def _ordered(self) -> AugmentConfig:
        if self.gain_db[0] > self.gain_db[1]:
            raise ValueError("gain_db must go from low to high")
        return self


def random_window(wave: np.ndarray, samples: int, rng: np.random.Generator) -> np.ndarray:
    """A random crop of a longer wave, or a shorter one at a random place in silence: [samples]."""
    spare = len(wave) - samples
    at = int(rng.integers(0, abs(spare) + 1))
    if spare >= 0:
        return wave[at : at + samples]
    window = np.zeros(samples, dtype=np.float32)
    window[at : at + len(wave)] = wave
    return window


def loop_to(wave: np.ndarray, samples: int) -> np.ndarray:
    """The wave repeated to at least `samples` (an empty wave gives silence)."""
    if len(wave) == 0:
        return np.zeros(samples, dtype=np.float32)
    return np.tile(wave, -(-samples // len(wave))) if len(wave) < samples else wave


def change_speed(wave: np.ndarray, factor: float) -> np.ndarray:
    """Play the wave `factor` times as fast, pitch included: [samples] -> about samples/factor."""
    import soxr

    if factor == 1.0 or len(wave) == 0:
        return wave
    # soxr only uses the ratio. Its faster "LQ" filter would remove the top fifth of the spectrum.
    return np.asarray(soxr.resample(wave, factor, 1.0, quality="MQ"), dtype=np.float32)


def draw_speed(limit: float, rng: np.random.Generator) -> float:
    """A factor log-uniform between 1/(1 + limit) and 1 + limit."""
    return float(np.exp(rng.uniform(-1.0, 1.0) * np.log1p(limit)))
