"""Events in a wave: where they begin, how long they last, one of them cut out and repeated.

Waves are float32 [samples]. An event begins where the level comes close to the loudest one again
after it has dropped well below: a bark, a knock, a shot. The rattle of falling shards does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diffsound.audio.mixing import PAUSE_DB, SILENCE_DB, fade, frame_rms, keep_peak

FRAME = 0.01  # seconds
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
    frame = max(1, round(FRAME * rate))
    return [place * frame for place in _starts(_levels_db(wave, frame))]


def extent(wave: np.ndarray, rate: int) -> Extent:
    """How long the sound of a clip is."""
    frame = max(1, round(FRAME * rate))
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
        frame = max(1, round(FRAME * rate))
        between = _levels_db(wave[starts[0] : starts[1]], frame)
        wave = wave[: starts[0] + (int(between.argmin()) + 1) * frame]
    event, _ = trim_silence(wave, rate, SILENCE_DB)
    levels = _levels_db(event, max(1, round(FRAME * rate)))
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
    frame = max(1, round(FRAME * rate))
    levels = _levels_db(event, frame)
    loud = np.flatnonzero(levels > levels.max(initial=-np.inf) - PAUSE_DB)
    seconds = (int(loud[-1]) + 1) * FRAME if len(loud) else 0.0
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
    closest = round(CLOSEST / FRAME)
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
