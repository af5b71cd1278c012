"""Levels, fades, distance and events, for mixing.

Waves are float32 [samples], mono, nominally within [-1, 1]. Levels are measured in the audible
parts, since the pauses of a barking dog say nothing about how loud it barks.
An event begins where the level comes close to the loudest one again after it has dropped well
below: a bark, a knock, a shot. The rattle of falling shards does not.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from diffsound.errors import InputError

PEAK = 0.99  # the largest peak of a mix, so that writing 16 bits never clips
SILENT = 1e-5  # a wave whose RMS is below this (-100 dBFS) has no level to normalise

FRAME_SECONDS = 0.02
TAIL = 0.4  # seconds of reverberation behind a distant event
# A frame this far below the loudest one is a pause for levels, and silence at a clip's ends.
PAUSE_DB, SILENCE_DB = 25.0, 50.0
LEVEL_SLACK_DB = 6.0
MOST_GAIN_DB = 24.0  # a nearly silent sound is probably meant to be

EVENT_FRAME = 0.01  # seconds; short, to find where an event begins
EVENT_DB = 15.0  # an event comes this near to the loudest frame …
RISE_DB = 8.0  # … and rises this far above the quietest frame since the last one
CLOSEST = 0.08  # seconds between two events
TAIL_DB = 30.0  # below the loudest frame a sound has died away, or is the noise of a room
FILLS, LASTING = 0.9, 3.0  # a clip of these seconds that sounds for this share of them goes on

PAUSE = 0.2  # seconds between an event and the next one
INTERVALS = (0.35, 1.5)  # seconds, the least and most from one event to the next
TIGHTEST = 0.12  # of these, if time is short
_DECAY = 0.25  # seconds over which an event that does not end by itself is faded out
_ATTACK = 0.003


def rms(wave: np.ndarray) -> float:
    """Root mean square of a wave; 0 for an empty one."""
    return float(np.sqrt(np.mean(np.square(wave, dtype=np.float64)))) if len(wave) else 0.0


def decibels(db: float) -> float:
    """The amplitude factor of a gain in dB."""
    return float(10.0 ** (db / 20.0))


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


def frame_rms(wave: np.ndarray, frame: int) -> np.ndarray:
    """RMS of consecutive frames, the last one zero-padded: [ceil(samples / frame)]."""
    padded = np.pad(wave, (0, -len(wave) % frame)).astype(np.float64)
    return np.sqrt(np.square(padded.reshape(-1, frame)).mean(axis=1))


def active_rms(wave: np.ndarray, rate: int) -> float:
    """RMS over the audible frames."""
    levels = frame_rms(wave, max(1, int(rate * FRAME_SECONDS)))
    sounding = levels[levels >= levels.max(initial=0.0) * 10 ** (-PAUSE_DB / 20)]
    return float(np.sqrt(np.square(sounding).mean())) if len(sounding) else 0.0


def level_db(wave: np.ndarray, rate: int) -> float | None:
    """RMS level of the audible parts in dB of full scale; None if there are none."""
    level = active_rms(wave, rate)
    return 20 * float(np.log10(level)) if level > SILENT else None


def gain_to(target: float, wave: np.ndarray, rate: int) -> float:
    """The factor that brings a wave's level within LEVEL_SLACK_DB of `target` dB.

    No closer: a whisper stays softer than a shout. Silence stays as it is.
    """
    level = level_db(wave, rate)
    if level is None:
        return 1.0
    wanted = float(np.clip(level, target - LEVEL_SLACK_DB, target + LEVEL_SLACK_DB))
    return decibels(min(MOST_GAIN_DB, wanted - level))


def distant(
    wave: np.ndarray, rate: int, tail: int, rng: np.random.Generator, cutoff: float = 1500.0
) -> np.ndarray:
    """The wave from far away, with duller highs and some reverberation: [samples + tail].

    A second-order low-pass, and a decaying diffuse tail whose energy equals a quarter of the direct
    sound's. The mixer attenuates it, as it sets all levels.
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


WIDTH, WIDE_FROM = 0.65, 200.0  # of the difference of the channels: its gain, and Hz
_VELVET_SECONDS, _VELVET_DENSITY = 0.03, 1500.0  # impulses a second


def widen(wave: np.ndarray, rate: int, ring: bool = False) -> np.ndarray:
    """A wave [samples] as stereo [samples, 2]; the mean of the channels is the wave itself.

    The difference of the channels is the wave through decaying velvet noise (sparse impulses of
    random sign), which sounds like the wave and is not correlated with it. Lows stay in the middle.
    ring: the wave is a loop, and so is the result.
    """
    length = round(_VELVET_SECONDS * rate)
    # One filter for all sounds, so that stems still add up; of 400 the one whose channels are most
    # equally loud in every octave (within 0.6 dB).
    rng = np.random.default_rng(215)
    grid = rate / _VELVET_DENSITY
    starts = np.arange(0, length - grid, grid)
    places = (starts + rng.uniform(0, grid, len(starts))).astype(int)
    velvet = np.zeros(length)
    velvet[places] = rng.choice([-1.0, 1.0], len(places)) * np.exp(-3 * places / length)
    velvet *= WIDTH / np.sqrt(np.square(velvet).sum())
    size = len(wave) if ring else 1 << (len(wave) + length + rate // 20).bit_length()
    frequency = np.square(np.fft.rfftfreq(size, 1 / rate))
    high_pass = frequency / (frequency + WIDE_FROM**2)
    if ring and size < length:
        velvet = np.add.reduceat(velvet, np.arange(0, length, size))
    filtered = np.fft.rfft(wave, size) * np.fft.rfft(velvet, size) * high_pass
    side = np.fft.irfft(filtered, size)[: len(wave)].astype(np.float32)
    if not ring:
        side = fade(side, 0, round(0.005 * rate))
    return np.stack([wave + side, wave - side], axis=1).astype(np.float32)


# The peak left after loudness normalisation, -1 dBFS as broadcast practice asks (EBU R 128).
LOUDNESS_CEILING = 10 ** (-1 / 20)

# BS.1770 measures in blocks of 400 ms.
_BLOCK_SECONDS = 0.4


def integrated_loudness(wave: NDArray[np.float32], sample_rate: int) -> float:
    """Loudness of a wave [samples] or [samples, channels] in LUFS; minus infinity for silence.

    BS.1770 is not defined below 400 ms; a shorter clip is measured as if it were repeated, which
    is its K-weighted RMS level and does not depend on how much silence would surround it.
    """
    import pyloudnorm

    block = int(np.ceil(_BLOCK_SECONDS * sample_rate))
    if len(wave) < block:
        wave = np.resize(wave, (block, *wave.shape[1:]))
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
    return keep_peak(wave * np.float32(10 ** ((target - measured) / 20)), LOUDNESS_CEILING)


@dataclass(frozen=True)
class Extent:
    """How long a sound is: seconds without silent ends, whether it goes on beyond its clip, and
    the number of its events."""

    seconds: float
    goes_on: bool
    events: int


def trim_silence(wave: np.ndarray, rate: int, below_db: float) -> tuple[np.ndarray, int]:
    """The wave without quiet ends, and how many samples were cut before it.

    Quiet are 10 ms blocks whose peak is `below_db` below the wave's; one block is kept as a margin.
    """
    block = max(1, rate // 100)
    padded = np.pad(np.abs(wave), (0, -len(wave) % block))
    peaks = padded.reshape(-1, block).max(axis=1)
    loud = np.flatnonzero(peaks > peaks.max() * 10 ** (-below_db / 20))
    if not len(loud):
        return wave, 0
    begin = max(0, int(loud[0]) - 1) * block
    end = min(len(wave), (int(loud[-1]) + 2) * block)
    return wave[begin:end], begin


def event_starts(wave: np.ndarray, rate: int) -> list[int]:
    """Where events begin, in samples; empty for silence."""
    frame = max(1, round(EVENT_FRAME * rate))
    return [place * frame for place in _starts(_levels_db(wave, frame))]


def extent(wave: np.ndarray, rate: int) -> Extent:
    """How long the sound of a clip is."""
    frame = max(1, round(EVENT_FRAME * rate))
    levels = _levels_db(wave, frame)
    heard = np.flatnonzero(levels > levels.max(initial=-np.inf) - TAIL_DB)
    lasting = len(heard) and heard[-1] + 1 - heard[0]
    seconds = len(wave) / rate
    return Extent(
        min(seconds, lasting * frame / rate),
        bool(seconds >= LASTING and lasting >= FILLS * len(levels)),
        len(_starts(levels)),
    )


def first_event(wave: np.ndarray, rate: int) -> np.ndarray:
    """The first event of a wave, without silence around it, with its decay.

    It ends where the next one begins, or with the wave; an abrupt end is faded.
    """
    starts = event_starts(wave, rate)
    if not starts:
        return wave
    if len(starts) > 1:
        # Up to the quietest place between the two.
        frame = max(1, round(EVENT_FRAME * rate))
        between = _levels_db(wave[starts[0] : starts[1]], frame)
        wave = wave[: starts[0] + (int(between.argmin()) + 1) * frame]
    event, _ = trim_silence(wave, rate, SILENCE_DB)
    levels = _levels_db(event, max(1, round(EVENT_FRAME * rate)))
    abrupt = levels[-3:].max() > levels.max() - PAUSE_DB
    decay = min(_DECAY, 0.4 * len(event) / rate) if abrupt else _ATTACK
    return fade(event, round(_ATTACK * rate), round(decay * rate))


def repeat_event(
    wave: np.ndarray, count: int, samples: int, rate: int, rng: np.random.Generator
) -> np.ndarray:
    """[samples] with the first event of a wave `count` times, then silence.

    Each repetition differs a little in pitch, level and timing, as no dog barks twice alike.
    """
    event = first_event(wave, rate)
    interval = interval_of(event, rate)
    if count > 1:
        # The last one needs room as well; a long decay may be cut.
        room = (samples - min(len(event), interval)) / (count - 1)
        interval = max(min(interval, int(room)), 1)
    scene = np.zeros(samples, dtype=np.float32)
    for number in range(count):
        one, start = event, number * interval
        if number:
            one = _varied(event, rng)
            start = max(0, start - round(rng.uniform(0, 0.1) * interval))
        part = one[: samples - start]
        if len(part) < len(one):
            part = fade(part, 0, round(_DECAY * rate))
        scene[start : start + len(part)] += part
    return keep_peak(scene)


def interval_of(event: np.ndarray, rate: int) -> int:
    """Samples from an event to its repetition: until it has died down, and a pause."""
    frame = max(1, round(EVENT_FRAME * rate))
    levels = _levels_db(event, frame)
    loud = np.flatnonzero(levels > levels.max(initial=-np.inf) - PAUSE_DB)
    seconds = (int(loud[-1]) + 1) * EVENT_FRAME if len(loud) else 0.0
    return round(min(max(seconds + PAUSE, INTERVALS[0]), INTERVALS[1]) * rate)


def _varied(event: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The event with a pitch up to half a semitone away and a level up to 1.5 dB lower."""
    speed = 2 ** (rng.uniform(-0.5, 0.5) / 12)
    places = np.arange(int(len(event) / speed)) * speed
    gain = 10 ** (-rng.uniform(0, 1.5) / 20)
    return (np.interp(places, np.arange(len(event)), event) * gain).astype(np.float32)


def _levels_db(wave: np.ndarray, frame: int) -> np.ndarray:
    return 20 * np.log10(np.maximum(frame_rms(wave, frame), 1e-6))


def _starts(levels: np.ndarray) -> list[int]:
    """Frames at which events begin, of levels in dB [frames]."""
    top = levels.max(initial=-np.inf)
    if top <= -100:
        return []
    closest = round(CLOSEST / EVENT_FRAME)
    starts: list[int] = []
    lowest = -np.inf
    for place, level in enumerate(levels):
        lowest = min(lowest, level)
        if level < top - EVENT_DB:
            continue
        apart = not starts or place - starts[-1] >= closest
        if level - lowest >= RISE_DB and apart:
            starts.append(place)
        if level - lowest >= RISE_DB:
            lowest = level
    return starts
