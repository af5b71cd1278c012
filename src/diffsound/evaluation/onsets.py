"""Are events counted right? Onsets for prompts with a number, single events for one-shots.

The detector knows nothing of `audio/mixing.py`, with which the scene planner cuts events: it looks
for sudden rises in many frequency bands at once (spectral flux), as onset detectors for music do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diffsound.evaluation.metrics import mean_score
from diffsound.generation.pipeline import TextToSound

_WINDOW, _HOP = 0.032, 0.008  # seconds
_LOWEST, _BANDS = 60.0, 24  # Hz, and bands from there to half the sample rate
_FLOOR_DB = 30.0  # below the loudest band nothing counts
_LOOK_BACK = 3  # hops over which a rise is measured
_LEAST_RISE_DB = 5.0  # on average over the bands that sound
_SHARE = 0.35  # of the greatest rise
_APART = 0.1  # seconds between onsets

# What one hears of these is a single event, however it is worded.
ONE_SHOTS = (
    "a glass breaks", "a clap", "a gunshot", "a door slams shut", "an explosion",
    "a knock on a door", "a balloon pops", "a punch", "a mouse click", "a sword hits metal",
    "a single bark", "a coin hits the floor",
)  # fmt: skip
COUNTED = (
    ("a dog barks twice", 2), ("two knocks on a wooden door", 2), ("two gunshots", 2),
    ("two claps", 2), ("a bell rings twice", 2), ("a person coughs twice", 2),
    ("a dog barks three times", 3), ("three knocks on a wooden door", 3), ("three gunshots", 3),
    ("three claps", 3), ("a car horn honks three times", 3), ("three footsteps on gravel", 3),
)  # fmt: skip


def onsets(wave: np.ndarray, rate: int) -> list[float]:
    """Where events begin in a wave [samples], in seconds."""
    size, hop = round(_WINDOW * rate), round(_HOP * rate)
    padded = np.pad(wave.astype(np.float64), (size, size))
    starts = np.arange(0, len(padded) - size, hop)
    frames = padded[starts[:, None] + np.arange(size)] * np.hanning(size)
    power = np.square(np.abs(np.fft.rfft(frames, axis=1)))
    edges = np.geomspace(_LOWEST, rate / 2, _BANDS + 1) / (rate / size)
    bins = np.unique(edges.round().astype(int).clip(1, power.shape[1] - 1))
    levels = 10 * np.log10(np.add.reduceat(power, bins[:-1], axis=1) + 1e-12)
    if levels.max() < -80:
        return []
    levels = np.maximum(levels, levels.max() - _FLOOR_DB)
    # A bark has few bands, a click all: those that never sound have no say.
    weights = (levels - levels.min()).mean(axis=0) + 1e-9
    risen = np.maximum(levels[_LOOK_BACK:] - levels[:-_LOOK_BACK], 0)
    rise = risen @ (weights / weights.sum())
    wanted = max(_LEAST_RISE_DB, _SHARE * float(rise.max()))
    found: list[float] = []
    apart = round(_APART / _HOP)
    for place in np.flatnonzero(rise >= wanted):
        around = rise[max(0, place - apart // 2) : place + apart // 2 + 1]
        time = float(starts[place + _LOOK_BACK] - size / 2) / rate
        if rise[place] == around.max() and (not found or time - found[-1] >= _APART):
            found.append(max(0.0, time))
    return found


def count_events(
    pipeline: TextToSound,
    *,
    counted: Sequence[tuple[str, int]] = COUNTED,
    one_shots: Sequence[str] = ONE_SHOTS,
    seed: int = 0,
    sampling: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Make every prompt at its natural length and count its onsets."""
    asked = [*counted, *((prompt, 1) for prompt in one_shots)]
    texts = [prompt for prompt, _ in asked]
    sounds = pipeline(texts, seed=seed, **(dict(sampling or {}) | {"duration": None}))
    rows: list[dict[str, Any]] = [
        {"text": prompt, "asked": number, "heard": len(onsets(sound.wave, sound.sample_rate)),
         "seconds": round(sound.duration, 2)}
        for (prompt, number), sound in zip(asked, sounds, strict=True)
    ]  # fmt: skip
    numbers, singles = rows[: len(counted)], rows[len(counted) :]
    return {
        "counted": _share("as many as asked for", numbers, seed),
        "single": _share("a single event", singles, seed),
        "mean_error": float(np.mean([abs(row["heard"] - row["asked"]) for row in numbers] or [0])),
        "prompts": rows,
    }


def _share(name: str, rows: Sequence[Mapping[str, Any]], seed: int) -> dict[str, Any]:
    right = np.asarray([float(row["heard"] == row["asked"]) for row in rows])
    return mean_score(name, right, seed=seed).to_json()
