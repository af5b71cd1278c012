"""How well a loop joins its own beginning: the seam compared with other places of the sound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsound.evaluation.checks import SILENT_DB, band_edges

if TYPE_CHECKING:
    from diffsound.generation.pipeline import TextToSound

# What people loop: lasting sounds.
PROMPTS = (
    "heavy rain falls",
    "a car engine idles",
    "a crowd talks",
    "waves break on a beach",
    "crickets at night",
    "a campfire crackles",
    "wind blows",
    "a helicopter flies",
)


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


def compare_loops(
    pipeline: TextToSound,
    prompts: Sequence[str],
    seconds: float,
    seed: int,
    progress: Callable[[str, int, int], None],
) -> list[dict[str, Any]]:
    """The seams of each prompt's loop, and of the same sound without `loop`, which just ends."""
    rows = []
    for done, prompt in enumerate(prompts, 1):
        loop, plain = (
            seam(sound.wave, sound.sample_rate)
            for on in (True, False)
            for sound in pipeline(prompt, duration=seconds, seed=seed, loop=on)
        )
        rows.append({"prompt": prompt, "worst": loop.worst, **asdict(loop), "plain": plain.worst})
        progress("loops", done, len(prompts))
    return rows


def seam(wave: np.ndarray, rate: int) -> Seam:
    """Compare the place where a wave [samples] of at least 0.5 s is repeated with other places."""
    side, near = round(0.05 * rate), round(0.002 * rate)
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
