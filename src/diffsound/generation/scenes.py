"""Scenes from single sounds: every voice of a sentence is made on its own, placed and mixed.

    plan = plan_scene(Job("rain, then a dog barks", seed=7), samples, rate)
    wave, layers = mix(plan, [make(job, length) for job, length in plan.pieces], rate)

A decoder trained on few scenes makes one event better than two. Mixing is exact where the decoder
guesses: both are there, in order, and distant sounds are quiet and dull.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from diffsound.audio.mixing import MOST_GAIN_DB, PEAK, TAIL, decibels, distant, fade, level_db
from diffsound.generation.jobs import Job, layer_seed
from diffsound.generation.sound import Layer, Sound
from diffsound.model.bundle import Bundle
from diffsound.text.scene import Voice, read_scene
from diffsound.threads import torch_threads

MIN_SECONDS = 1.0  # of a moment; with less there is no room for its sounds
OVERLAP = 0.3  # seconds that a moment fades out into the next
CUT_FADE = 0.02  # seconds, where a distant sound's reverberation is cut
BACKGROUND_DB, DISTANT_DB = -8.0, -12.0  # below the others


@dataclass(frozen=True)
class Slot:
    """Where a voice sounds: samples of the scene. fades: it ends before the scene does."""

    voice: Voice
    start: int
    length: int
    fades: bool


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
        return [(job, slot.length) for job, slot in zip(self.jobs, self.slots, strict=True)]


def lay_out(voices: Sequence[Voice], samples: int, rate: int) -> list[Slot] | None:
    """A slot for every voice: moments share the time evenly; None if there is too little of it."""
    moments = 1 + max((v.moment for v in voices if v.moment is not None), default=0)
    if samples < moments * MIN_SECONDS * rate:
        return None
    edges = [samples * moment // moments for moment in range(moments + 1)]
    slots = []
    for voice in voices:
        start, end = (0, samples) if voice.moment is None else edges[voice.moment :][:2]
        fades = end < samples
        end = min(samples, end + round(OVERLAP * rate)) if fades else end
        slots.append(Slot(voice, start, end - start, fades))
    return slots


def plan_scene(job: Job, samples: int, rate: int, loop: bool = False) -> Plan | None:
    """How a job's sentence becomes a scene; None if it is made in one piece.

    That is the case for a single sound, for too little time, and for a loop with an order: a layer
    that ends within the scene cannot join its beginning.
    """
    voices = read_scene(job.prompt)
    if len(voices) == 1 and not voices[0].distant:
        return None
    slots = lay_out(voices, samples, rate)
    if slots is None or (loop and any(slot.length < samples for slot in slots)):
        return None
    jobs = tuple(Job(v.text, layer_seed(job.seed, number)) for number, v in enumerate(voices))
    return Plan(samples, tuple(slots), jobs, loop)


def mix(plan: Plan, waves: Sequence[np.ndarray], rate: int) -> tuple[np.ndarray, list[Layer]]:
    """The scene [samples], and its layers. waves: float32, one for each slot, of its length.

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
    scores = [sound.score for sound in sounds if sound.score is not None]
    known = [sound.coverage for sound in sounds if sound.coverage is not None]
    return Sound(
        wave=wave,
        sample_rate=bundle.sample_rate,
        mel=mel[0].cpu().numpy(),
        tokens=tokens[0].cpu().numpy(),
        prompt=job.prompt,
        seed=job.seed,
        settings=sounds[0].settings,
        score=sum(scores) / len(scores) if scores else None,
        coverage=min(known, key=lambda one: one["similarity"], default=None),
        layers=tuple(layers),
    )


def _gain_db(voice: Voice, level: float | None, mean: float) -> float:
    gain = 0.0 if level is None else min(MOST_GAIN_DB, mean - level)
    return gain + BACKGROUND_DB * (voice.moment is None) + DISTANT_DB * voice.distant


def _place(
    slot: Slot, wave: np.ndarray, gain_db: float, plan: Plan, rate: int, seed: int
) -> np.ndarray:
    """A voice's sound at its place in the scene: [samples]."""
    ramp = OVERLAP if slot.fades else 0.0
    if slot.voice.distant:
        rng = np.random.default_rng(seed)
        if plan.loop:  # the second of three repetitions has the echo of the first
            wave = distant(np.tile(wave, 3), rate, 0, rng)[len(wave) : 2 * len(wave)]
        else:
            wave = distant(wave, rate, round(TAIL * rate), rng)
            ramp = max(ramp, CUT_FADE)
    wave = fade(wave[: slot.length], 0, round(ramp * rate))
    scene = np.zeros(plan.samples, dtype=np.float32)
    scene[slot.start : slot.start + len(wave)] = wave * np.float32(decibels(gain_db))
    return scene
