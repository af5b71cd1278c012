"""Short sounds, and a mel small enough, for tests of the metrics."""

from __future__ import annotations

import numpy as np

from diffsound.audio.mel import MelConfig
from diffsound.evaluation.features import ScoredClip, wave_clip

RATE = 8000
MEL = MelConfig(n_fft=256, hop_length=64, n_mels=32, fmin=0.0, fmax=4000.0, sample_rate=RATE)


def sound(number: int, seconds: float = 0.5) -> np.ndarray:
    """A different short sound for each number: decaying tones and noises in bursts."""
    rng = np.random.default_rng(number)
    time = np.arange(round(seconds * RATE)) / RATE
    wave = np.zeros(len(time))
    for start in rng.uniform(0, 0.8 * seconds, size=4):
        since = np.maximum(time - start, 0.0)
        tone = np.sin(2 * np.pi * rng.uniform(150, 3500) * since)
        noise = rng.standard_normal(len(time)) * rng.uniform(0, 0.5)
        wave += (time >= start) * np.exp(-rng.uniform(8, 40) * since) * (tone + noise)
    return (0.2 * wave).astype(np.float32)


def clip(number: int, seconds: float = 0.5) -> ScoredClip:
    return wave_clip(f"clip-{number}", sound(number, seconds), RATE)
