"""Scenes from single sounds: every voice of a sentence is made on its own, placed and mixed.

    voices = timed_voices("two knocks, then rain", look_up, usual=5.0)
    plan = plan_scene(job, voices, samples=round(scene_seconds(voices) * rate), rate=rate)
    wave, layers = mix(plan, [make(job, length) for job, length in plan.pieces], rate)

A decoder trained on few scenes makes one event better than two, and cannot count. Mixing is exact
where the decoder guesses: both are there, in order, as often as asked for, and distant sounds are
quiet and dull.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from diffsound.audio.mixing import (
    INTERVALS,
    MOST_GAIN_DB,
    PAUSE,
    PEAK,
    TAIL,
    TIGHTEST,
    decibels,
    distant,
    fade,
    level_db,
    repeat_event,
)
from diffsound.generation.jobs import Job, layer_seed
from diffsound.generation.settings import GenerationSettings
from diffsound.generation.sound import Layer, Sound
from diffsound.model.bundle import Bundle
from diffsound.model.coverage import NaturalLength
from diffsound.text.scene import Voice, read_scene, stretch
from diffsound.threads import torch_threads

MIN_SECONDS = 1.0  # of a moment; with less there is no room for its sounds
OVERLAP = 0.3  # seconds that a moment fades out into the next
CUT_FADE = 0.02  # seconds, where a distant sound's reverberation is cut
BACKGROUND_DB, DISTANT_DB = -8.0, -12.0  # below the others

SHORTEST, LONGEST, LONGEST_SAID = 0.5, 10.0, 30.0  # seconds: natural, and in the sentence's words
# A learned length ends 30 dB below the loudest part; this is for the rest of the decay.
DECAY_SHARE, DECAY_SECONDS = 0.15, 0.2
EVENT_SECONDS = (0.2, 2.0)  # of one event in a row of them
CUT_BELOW = 0.5  # seconds: a longer single event, such as a bell, decays; a cut would end that
MADE_SECONDS = (0.5, 2.0)  # of what is made to cut one event out of

LookUp = Callable[[str], NaturalLength | None]


@dataclass(frozen=True)
class TimedVoice:
    """A voice and how long it is by itself, in seconds; a single event is counted.

    made: how long a sound is made to cut an event out of it, if events are counted.
    """

    voice: Voice
    seconds: float
    made: float


def timed_voices(prompt: str, look_up: LookUp, usual: float) -> list[TimedVoice]:
    """The voices of a sentence with their natural lengths.

    look_up: what was learned about a text. usual: seconds of what goes on, or is unknown.
    """
    return [_timed(voice, look_up(voice.text), usual) for voice in read_scene(prompt)]


def _timed(voice: Voice, known: NaturalLength | None, usual: float) -> TimedVoice:
    counted = voice.count is not None or voice.seconds is not None
    if not counted and known is not None and known.single and known.seconds < CUT_BELOW:
        voice = replace(voice, count=1)
    made = float(np.clip(usual if known is None else known.seconds, *MADE_SECONDS))
    if voice.seconds is not None:
        said = float(np.clip(voice.seconds, SHORTEST, LONGEST_SAID))
        return TimedVoice(voice, said, min(made, said))
    if known is None or (known.goes_on and voice.count is None):
        natural = usual
    else:
        one = known.seconds
        if voice.count is not None and not known.single:
            one = float(np.clip(known.seconds / max(known.events, 1.0), *EVENT_SECONDS))
        interval = float(np.clip(one + PAUSE, *INTERVALS))
        decay = DECAY_SHARE * one + DECAY_SECONDS
        natural = ((voice.count or 1) - 1) * interval + one + decay
    natural = float(np.clip(natural * stretch(voice.text), SHORTEST, LONGEST))
    return TimedVoice(voice, round(natural, 1), made)


def scene_seconds(voices: Sequence[TimedVoice]) -> float:
    """The natural length of a scene: its moments one after another, each as long as its longest."""
    moments = _moment_seconds(voices)
    longest = LONGEST_SAID if any(timed.voice.seconds for timed in voices) else LONGEST
    return round(float(np.clip(sum(moments), SHORTEST, longest)), 1)


def _moment_seconds(voices: Sequence[TimedVoice]) -> list[float]:
    """The natural length of each moment; what is heard throughout has no say."""
    moments: dict[int, float] = {}
    for timed in voices:
        if timed.voice.moment is not None:
            moments[timed.voice.moment] = max(moments.get(timed.voice.moment, 0.0), timed.seconds)
    return [moments[moment] for moment in sorted(moments)]


@dataclass(frozen=True)
class Slot:
    """Where a voice sounds: samples of the scene. fades: it ends before the scene does.

    made: samples of the sound that is made for it: one event, if the voice is counted.
    """

    voice: Voice
    start: int
    length: int
    fades: bool
    made: int


@dataclass(frozen=True)
class Plan:
    """A scene to be made: its slots, and a prompt and seed for each.

    loop: every slot lasts as long as the scene, and its sound is a loop.
    """

    samples: int
    slots: tuple[Slot, ...]
    jobs: tuple[Job, ...]
    loop: bool = False

    @property
    def pieces(self) -> list[tuple[Job, int]]:
        """The jobs, with their numbers of samples."""
        return [(job, slot.made) for job, slot in zip(self.jobs, self.slots, strict=True)]


def lay_out(voices: Sequence[TimedVoice], samples: int, rate: int) -> list[Slot] | None:
    """A slot for every voice; None if there is too little time.

    Moments share the time by their natural lengths, once each has its least.
    """
    natural = [seconds * rate for seconds in _moment_seconds(voices)] or [float(samples)]
    least = [min(MIN_SECONDS * rate, length) for length in natural]
    surplus = samples - sum(least)
    if surplus < 0:
        return None
    wanted = [max(length - low, 1.0) for length, low in zip(natural, least, strict=True)]
    shares = [low + surplus * more / sum(wanted) for low, more in zip(least, wanted, strict=True)]
    edges = [0, *(int(edge + 1e-3) for edge in accumulate(shares))]
    edges[-1] = samples
    slots = []
    for timed in voices:
        voice = timed.voice
        start, end = (0, samples) if voice.moment is None else edges[voice.moment :][:2]
        fades = end < samples
        end = min(samples, end + round(OVERLAP * rate)) if fades else end
        length = end - start
        if voice.count is not None and length < voice.count * TIGHTEST * rate:
            return None
        made = length if voice.count is None else min(length, round(timed.made * rate))
        slots.append(Slot(voice, start, length, fades, made))
    return slots


def plan_scene(
    job: Job, voices: Sequence[TimedVoice], samples: int, rate: int, loop: bool = False
) -> Plan | None:
    """How a job's sentence becomes a scene; None if it is made in one piece.

    That is the case for a single sound, for too little time, and for a loop with an order or a
    number: a layer that ends within the scene cannot join its beginning.
    """
    (first, *others) = (timed.voice for timed in voices)
    if not others and first == Voice(job.prompt):
        return None
    slots = lay_out(voices, samples, rate)
    if slots is None or (loop and any(slot.made < samples for slot in slots)):
        return None
    jobs = tuple(
        Job(slot.voice.text, layer_seed(job.seed, number)) for number, slot in enumerate(slots)
    )
    return Plan(samples, tuple(slots), jobs, loop)


class ScenePlanner:
    """Plans the scenes of a bundle, with the lengths that it has learned."""

    def __init__(self, bundle: Bundle, encode: Callable[[str], Tensor]) -> None:
        """encode: a text -> its vector [1, D]."""
        self._bundle = bundle
        self._encode = encode
        self._learned = lru_cache(1024)(self._look_up)

    def seconds(self, prompt: str) -> float:
        """The natural length of a prompt's sound."""
        return self._seconds(self._voices(prompt))

    def plan(self, job: Job, settings: GenerationSettings) -> Plan | int:
        """How a job's sound is made: layer by layer, or in one piece of this many samples."""
        rate = self._bundle.sample_rate
        if settings.duration is not None and not settings.layered:
            return round(settings.duration * rate)
        voices = self._voices(job.prompt)
        samples = round((settings.duration or self._seconds(voices)) * rate)
        plan = plan_scene(job, voices, samples, rate, settings.loop) if settings.layered else None
        return plan or samples

    def _voices(self, prompt: str) -> list[TimedVoice]:
        return timed_voices(prompt, self._learned, self._bundle.config.defaults.duration)

    def _seconds(self, voices: Sequence[TimedVoice]) -> float:
        learned = self._bundle.coverage is not None and self._bundle.coverage.lengths is not None
        if learned or any(timed.voice.seconds for timed in voices):
            return scene_seconds(voices)
        return self._bundle.config.defaults.duration

    def _look_up(self, text: str) -> NaturalLength | None:
        # One text at a time: its length must not depend on what is asked for beside it.
        coverage = self._bundle.coverage
        if coverage is None or coverage.lengths is None:
            return None
        return coverage.natural(self._encode(text))[0]


def mix(plan: Plan, waves: Sequence[np.ndarray], rate: int) -> tuple[np.ndarray, list[Layer]]:
    """The scene [samples], and its layers. waves: float32, one for each slot, as long as it says.

    All voices are brought to their mean level in dB, then lowered for background and distance.
    """
    levels = [level_db(wave, rate) for wave in waves]
    mean = float(np.mean([level for level in levels if level is not None] or [0.0]))
    gains = [
        _gain_db(slot.voice, level, mean) for slot, level in zip(plan.slots, levels, strict=True)
    ]
    placed = [
        _place(slot, wave, gain, plan, rate, job.seed)
        for slot, wave, gain, job in zip(plan.slots, waves, gains, plan.jobs, strict=True)
    ]
    total = np.sum(placed, axis=0, dtype=np.float32)
    top = float(np.abs(total).max())
    quieter = min(1.0, PEAK / top) if top else 1.0
    layers = [
        Layer(
            text=slot.voice.text,
            seed=job.seed,
            start=slot.start / rate,
            end=(slot.start + slot.length) / rate,
            distant=slot.voice.distant,
            background=slot.voice.moment is None,
            gain_db=gain + 20 * float(np.log10(quieter)),
            wave=wave * np.float32(quieter),
        )
        for slot, wave, gain, job in zip(plan.slots, placed, gains, plan.jobs, strict=True)
    ]
    return np.multiply(total, np.float32(quieter)), layers


def compose(bundle: Bundle, job: Job, plan: Plan, sounds: Sequence[Sound]) -> Sound:
    """The scene of a job, mixed from the sounds of its layers."""
    wave, layers = mix(plan, [sound.wave for sound in sounds], bundle.sample_rate)
    with torch.inference_mode(), torch_threads(1):
        mel = bundle.mel(torch.from_numpy(wave))
        tokens = bundle.codec.encode(mel)
    record = dict(sounds[0].settings)  # whose duration is the layer's
    if round(record["duration"] * bundle.sample_rate) != plan.samples:
        record["duration"] = round(plan.samples / bundle.sample_rate, 4)
    scores = [sound.score for sound in sounds if sound.score is not None]
    known = [sound.coverage for sound in sounds if sound.coverage is not None]
    return Sound(
        wave=wave,
        sample_rate=bundle.sample_rate,
        mel=mel[0].cpu().numpy(),
        tokens=tokens[0].cpu().numpy(),
        prompt=job.prompt,
        seed=job.seed,
        settings=record,
        score=sum(scores) / len(scores) if scores else None,
        coverage=min(known, key=lambda one: one["similarity"], default=None),
        layers=tuple(layers) if len(layers) > 1 or layers[0].distant else (),
    )


def _gain_db(voice: Voice, level: float | None, mean: float) -> float:
    gain = 0.0 if level is None else min(MOST_GAIN_DB, mean - level)
    return gain + BACKGROUND_DB * (voice.moment is None) + DISTANT_DB * voice.distant


def _place(
    slot: Slot, wave: np.ndarray, gain_db: float, plan: Plan, rate: int, seed: int
) -> np.ndarray:
    """A voice's sound at its place in the scene: [samples]."""
    ramp = OVERLAP if slot.fades else 0.0
    rng = np.random.default_rng(seed)
    if slot.voice.count is not None:
        wave = repeat_event(wave, slot.voice.count, slot.length, rate, rng)
    if slot.voice.distant:
        if plan.loop:  # the second of three repetitions has the echo of the first
            wave = distant(np.tile(wave, 3), rate, 0, rng)[len(wave) : 2 * len(wave)]
        else:
            wave = distant(wave, rate, round(TAIL * rate), rng)
            ramp = max(ramp, CUT_FADE)
    wave = fade(wave[: slot.length], 0, round(ramp * rate))
    scene = np.zeros(plan.samples, dtype=np.float32)
    scene[slot.start : slot.start + len(wave)] = wave * np.float32(decibels(gain_db))
    return scene
