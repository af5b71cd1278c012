"""What a mixer does to a clip: find its sound, cut it, send it into the distance, make it last.

Waves are float32 [samples]; levels are of the parts that sound, since the pauses of a barking dog
say nothing about how loud it barks.
"""

from __future__ import annotations

import numpy as np

from diffsound.data.augment import SILENT, decibels

FRAME_SECONDS = 0.02
TAIL = 0.4  # seconds of reverberation behind a distant event
# A frame this far below the loudest one is a pause for levels, and silence at a clip's ends.
PAUSE_DB, SILENCE_DB = 25.0, 50.0
LEVEL_SLACK_DB = 6.0
MOST_GAIN_DB = 24.0  # what is nearly silent has a reason to be


def frame_rms(wave: np.ndarray, frame: int) -> np.ndarray:
    """RMS of consecutive frames, the last one zero-padded: [ceil(samples / frame)]."""
    padded = np.pad(wave, (0, -len(wave) % frame)).astype(np.float64)
    return np.sqrt(np.square(padded.reshape(-1, frame)).mean(axis=1))


def active_span(wave: np.ndarray, rate: int) -> tuple[int, int] | None:
    """First and past-the-last sample of what is heard; None for a silent clip."""
    frame = max(1, int(rate * FRAME_SECONDS))
    levels = frame_rms(wave, frame)
    if levels.max(initial=0.0) < SILENT:
        return None
    heard = np.flatnonzero(levels > levels.max() * 10 ** (-SILENCE_DB / 20))
    return int(heard[0]) * frame, min(len(wave), (int(heard[-1]) + 1) * frame)


def active_rms(wave: np.ndarray, rate: int) -> float:
    """RMS over the frames that sound."""
    levels = frame_rms(wave, max(1, int(rate * FRAME_SECONDS)))
    sounding = levels[levels >= levels.max(initial=0.0) * 10 ** (-PAUSE_DB / 20)]
    return float(np.sqrt(np.square(sounding).mean())) if len(sounding) else 0.0


def level_db(wave: np.ndarray, rate: int) -> float | None:
    """RMS level in dB of full scale of the parts that sound; None if none does."""
    level = active_rms(wave, rate)
    return 20 * float(np.log10(level)) if level > SILENT else None


def gain_to(target: float, wave: np.ndarray, rate: int) -> float:
    """The factor that brings a wave's level within LEVEL_SLACK_DB of `target` dB.

    No nearer: a whisper stays softer than a shout. What is silent stays as it is.
    """
    level = level_db(wave, rate)
    if level is None:
        return 1.0
    wanted = float(np.clip(level, target - LEVEL_SLACK_DB, target + LEVEL_SLACK_DB))
    return decibels(min(MOST_GAIN_DB, wanted - level))


def is_texture(wave: np.ndarray, rate: int, seconds: float = 2.0, range_db: float = 12.0) -> bool:
    """Whether a clip can lie under a scene: long enough, and never far below its own level.

    Measured, not looked up by label, so that it holds for anybody's recordings.
    """
    if len(wave) < seconds * rate:
        return False
    levels = frame_rms(wave, max(1, int(rate * 0.1)))[:-1]  # the last frame may be partly padding
    low, high = np.percentile(levels, (5, 95))
    return bool(high > SILENT and low > high * 10 ** (-range_db / 20))


def loudest_start(wave: np.ndarray, samples: int) -> int:
    """Where the `samples` with the most energy begin: what is cut from a long clip must hold its
    event."""
    if len(wave) <= samples:
        return 0
    energy = np.concatenate([[0.0], np.cumsum(np.square(wave, dtype=np.float64))])
    return int(np.argmax(energy[samples:] - energy[:-samples]))


def distant(
    wave: np.ndarray, rate: int, tail: int, rng: np.random.Generator, cutoff: float = 1500.0
) -> np.ndarray:
    """The wave as from afar: air takes the highs, the surroundings answer. [samples + tail]

    A second-order low-pass, and a decaying diffuse tail whose energy equals a quarter of the direct
    sound's. Attenuation is the mixer's, which sets all levels.
    """
    out = len(wave) + tail
    # The low-pass has died away within 10 ms, before it comes round to the other end.
    size = 1 << (out + rate // 20).bit_length()
    frequency = np.fft.rfftfreq(size, 1 / rate)
    low_pass = 1.0 / np.sqrt(1.0 + (frequency / cutoff) ** 4)
    direct = np.fft.rfft(wave, size) * low_pass
    decay = np.exp(-6.9 * np.arange(tail) / max(tail, 1))  # 60 dB over the tail
    diffuse = rng.standard_normal(tail) * decay
    diffuse *= 0.5 / max(float(np.sqrt(np.square(diffuse).sum())), 1e-9)
    answered = direct * (1.0 + np.fft.rfft(diffuse, size))
    return np.fft.irfft(answered, size)[:out].astype(np.float32)


def lasting(wave: np.ndarray, samples: int, overlap: int, rng: np.random.Generator) -> np.ndarray:
    """A texture from a random point on, repeated with crossfades until it fills `samples`."""
    if len(wave) >= samples:
        start = int(rng.integers(0, len(wave) - samples + 1))
        return wave[start : start + samples]
    overlap = min(overlap, len(wave) // 3)
    step = len(wave) - overlap
    start = int(rng.integers(0, step))
    needed = start + overlap + samples
    out = np.zeros(needed + len(wave), dtype=np.float32)
    # Both ends of every copy are faded; they add up to a constant level where they meet.
    piece = equal_power_ends(wave, overlap)
    for at in range(0, needed, step):
        out[at : at + len(piece)] += piece
    # The very first ramp has no partner: skip it too.
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
