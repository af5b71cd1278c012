"""Text to sound: the four stages in a row.

    sounds = TextToSound.from_pretrained()("a dog barks", duration=4, seed=7)
    sounds[0].save("dog.wav")

Every sound is reproducible on its own: candidate i of a call with seed s is what a call with
seed s + i makes, whichever prompts and candidates run beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from diffsound.bundle import Bundle
from diffsound.chain import Chain
from diffsound.choosing import CaptionerRanker, MatcherRanker
from diffsound.data.augment import PEAK
from diffsound.data.scene_effects import gain_to
from diffsound.decoder.contract import SamplingSettings
from diffsound.drawing import Order, draw_best
from diffsound.editing import Clip, Edit, extend, inpaint, vary
from diffsound.errors import InputError
from diffsound.jobs import MAX_CANDIDATES, Job, make_jobs
from diffsound.layers import Plan, mix, plan_scene
from diffsound.sound import Sound
from diffsound.stages import Stages, default_backend, make_stages
from diffsound.text.clean import clean_prompt
from diffsound.text.features import TextFeatures
from diffsound.threads import torch_threads

MIN_DURATION, MAX_DURATION = 0.5, 30.0
SETTING_NAMES = tuple(SamplingSettings.__dataclass_fields__)

# Called after every sampling step with the share of the whole call that is done (0 to 1) and the
# current tokens [B, F', L'] of the micro-batch at work.
ProgressCallback = Callable[[float, Tensor], None]


class Ranker(Protocol):
    """Says how well sounds fit a prompt: one number per sound, greater is better."""

    def score(self, prompt: str, sounds: Sequence[Sound]) -> list[float]: ...


class TextToSound:
    """A loaded bundle, ready to make and edit sounds."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        device: torch.device | str = "cpu",
        max_batch_seconds: float = 60.0,
        stages: Stages | None = None,
        ranker: Ranker | None = None,
    ) -> None:
        """max_batch_seconds bounds memory: candidates run in micro-batches of so much sound.

        stages: what runs the networks; as the bundle's defaults say when missing.
        ranker: chooses among candidates (`evaluation.ranking` has some); the bundle's matcher or
        captioner when missing, if it has one.
        """
        if max_batch_seconds <= 0:
            raise InputError("max_batch_seconds must be more than 0")
        self.bundle = bundle
        self.device = torch.device(device)
        self.max_batch_seconds = max_batch_seconds
        self.matcher = MatcherRanker(bundle, self.device) if "matcher" in bundle.judges else None
        self.ranker = ranker or self.matcher
        if self.ranker is None and "captioner" in bundle.judges:
            self.ranker = CaptionerRanker(bundle.judges["captioner"], self.device)
        stages = stages or make_stages(bundle, default_backend(bundle, self.device))
        self.chain = Chain(bundle, self.device, stages)

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path | None = None,
        *,
        backend: str | None = None,
        device: torch.device | str = "cpu",
        **options: Any,
    ) -> TextToSound:
        """From a folder, a hub id, or (None) the bundle that ships with the package.

        backend: "torch"; "int8", faster and a little rougher; or "onnx" for a bundle with
        exported networks. The latter two run on the CPU only. None: what the bundle was made for.
        """
        if backend not in (None, "torch") and torch.device(device).type != "cpu":
            raise InputError(f"the backend '{backend}' runs on the CPU, not on '{device}'")
        bundle = Bundle.from_pretrained(source)
        backend = backend or default_backend(bundle, device)
        return cls(bundle, stages=make_stages(bundle, backend, source), device=device, **options)

    @property
    def sample_rate(self) -> int:
        return self.chain.sample_rate

    def __call__(
        self,
        prompt: str | Sequence[str],
        *,
        duration: float | None = None,
        negative_prompt: str | None = None,
        num_candidates: int = 1,
        keep: int | None = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        callback: ProgressCallback | None = None,
        **sampling: Any,
    ) -> list[Sound]:
        """Make `num_candidates` sounds for each prompt, prompt by prompt.

        keep: of each prompt's candidates only this many, best first, by the pipeline's ranker
        (section VIII-D); None keeps all, in the order of their seeds.

        duration: seconds, 0.5 to 30. seed: reproduces the result; drawn from `generator`, or at
        random, when missing. sampling: fields of SamplingSettings (`num_inference_steps`,
        `guidance_scale`, `sampler`, `temperature`, `top_k`, `truncation`, …) that replace the
        bundle's defaults.
        """
        if keep is not None:
            self.check_keep(keep, num_candidates)
        sounds = self.run_jobs(
            make_jobs(prompt, num_candidates, seed, generator),
            duration=duration,
            negative_prompt=negative_prompt,
            callback=callback,
            **sampling,
        )
        if keep is None:
            return sounds
        groups = (sounds[i : i + num_candidates] for i in range(0, len(sounds), num_candidates))
        return [sound for group in groups for sound in self.rank(group, keep)]

    def rank(self, sounds: Sequence[Sound], keep: int | None = None) -> list[Sound]:
        """Sounds of one prompt, best first, each with its score; the first `keep` of them."""
        scores = self._require_ranker().score(sounds[0].prompt, sounds)
        scored = [replace(s, score=score) for s, score in zip(sounds, scores, strict=True)]
        return sorted(scored, key=lambda sound: -(sound.score or 0.0))[:keep]

    def _require_ranker(self) -> Ranker:
        if self.ranker is None:
            raise InputError(
                f"'{self.bundle.config.name}' has no ranker to choose among candidates with; "
                "a bundle with a matcher or a captioner has one"
            )
        return self.ranker

    def check_keep(self, keep: int, num_candidates: int) -> None:
        """Refuse a choice that cannot be made, before any candidate is."""
        self._require_ranker()
        if not 1 <= keep <= num_candidates:
            raise InputError(
                f"keep must be from 1 to the number of candidates, {num_candidates}; not {keep}"
            )

    def run_jobs(
        self,
        jobs: Sequence[Job],
        *,
        duration: float | None = None,
        edit: Edit | None = None,
        negative_prompt: str | None = None,
        callback: ProgressCallback | None = None,
        **sampling: Any,
    ) -> list[Sound]:
        """Make one sound per job, each with a prompt and seed of its own.

        What several callers want at once can so run together; every sound is the one a call of
        its own would make. An edit brings its own duration.
        """
        settings = self.sampling_settings(**sampling)
        avoid = "" if not (negative_prompt or "").strip() else clean_prompt(negative_prompt or "")
        if edit is not None:
            # What an edit changes must fit its surroundings, which neither the ranker judges nor
            # a mixer knows.
            settings = replace(settings, best_of=1, layered=False)
            record = self._record(avoid, settings) | dict(edit.record)
            return self._run(jobs, Order(edit.samples, settings, avoid, record, edit), callback)
        seconds = self._check_duration(duration)
        samples = round(seconds * self.sample_rate)
        record = self._record(avoid, settings) | {"duration": seconds}
        order = Order(samples, settings, avoid, record)
        if not settings.layered:
            return self._run(jobs, order, callback)
        plans = [plan_scene(job, samples, self.sample_rate) for job in jobs]
        pieces = [
            piece
            for job, plan in zip(jobs, plans, strict=True)
            for piece in ([(job, samples)] if plan is None else plan.pieces)
        ]
        made = iter(self._run_pieces(pieces, order, callback))
        return [
            next(made) if plan is None else self._mixed(job, plan, [next(made) for _ in plan.jobs])
            for job, plan in zip(jobs, plans, strict=True)
        ]

    def inpaint(
        self,
        source: Clip,
        prompt: str,
        start: float,
        end: float,
        *,
        low: float | None = None,
        high: float | None = None,
        **options: Any,
    ) -> list[Sound]:
        """Make the seconds from `start` to `end` anew; the rest stays the original recording.

        low, high: limit the change to these frequencies in Hz.
        options: as in a plain call (`seed`, `num_candidates`, `num_inference_steps`, …).
        """
        return self._edit(inpaint(self.chain, source, start, end, low, high), prompt, **options)

    def extend(self, source: Clip, prompt: str, seconds: float, **options: Any) -> list[Sound]:
        """Continue a clip for so many seconds; the clip itself stays as it was."""
        return self._edit(extend(self.chain, source, seconds), prompt, **options)

    def vary(self, source: Clip, prompt: str, strength: float = 0.5, **options: Any) -> list[Sound]:
        """Another take of a clip: re-noised to step strength·T and denoised again."""
        return self._edit(vary(self.chain, source, strength), prompt, **options)

    def _edit(
        self,
        edit: Edit,
        prompt: str,
        *,
        negative_prompt: str | None = None,
        num_candidates: int = 1,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        callback: ProgressCallback | None = None,
        **sampling: Any,
    ) -> list[Sound]:
        return self.run_jobs(
            make_jobs(prompt, num_candidates, seed, generator),
            edit=edit,
            negative_prompt=negative_prompt,
            callback=callback,
            **sampling,
        )

    def _run_pieces(
        self,
        pieces: Sequence[tuple[Job, int]],
        order: Order,
        callback: ProgressCallback | None,
    ) -> list[Sound]:
        """A sound for each job, of its own number of samples; those of one length run together."""
        sounds: dict[int, Sound] = {}
        for samples in dict.fromkeys(length for _, length in pieces):
            places = [place for place, (_, length) in enumerate(pieces) if length == samples]

            def on_progress(
                share: float, tokens: Tensor, done: int = len(sounds), count: int = len(places)
            ) -> None:
                if callback is not None:
                    callback((done + count * share) / len(pieces), tokens)

            jobs = [pieces[place][0] for place in places]
            made = self._run(jobs, replace(order, samples=samples), on_progress)
            sounds |= zip(places, made, strict=True)
        return [sounds[place] for place in range(len(pieces))]

    def _mixed(self, job: Job, plan: Plan, sounds: Sequence[Sound]) -> Sound:
        """The scene that a job asks for, of the sounds made for its layers."""
        wave, layers = mix(plan, [sound.wave for sound in sounds], self.sample_rate)
        with torch_threads(1):
            mel = self.chain.mel(torch.from_numpy(wave))
            tokens = self.bundle.codec.encode(mel)
        scores = [sound.score for sound in sounds if sound.score is not None]
        known = [sound.coverage for sound in sounds if sound.coverage is not None]
        return Sound(
            wave=wave,
            sample_rate=self.sample_rate,
            mel=mel[0].cpu().numpy(),
            tokens=tokens[0].cpu().numpy(),
            prompt=job.prompt,
            seed=job.seed,
            settings=sounds[0].settings,
            score=sum(scores) / len(scores) if scores else None,
            coverage=min(known, key=lambda one: one["similarity"], default=None),
            layers=tuple(layers),
        )

    def _run(
        self,
        jobs: Sequence[Job],
        order: Order,
        callback: ProgressCallback | None,
    ) -> list[Sound]:
        """Make every job's sound, micro-batch by micro-batch."""
        size = max(1, self._micro_batch(order.samples) // order.settings.best_of)
        sounds: list[Sound] = []
        for start in range(0, len(jobs), size):
            batch = jobs[start : start + size]

            def on_step(
                done: int, total: int, tokens: Tensor, start: int = start, count: int = len(batch)
            ) -> None:
                if callback is not None:
                    callback((start + count * done / total) / len(jobs), tokens)

            text = self.chain.encode_text([job.prompt for job in batch])
            drawn = draw_best(self.chain, self.matcher, batch, text, order, on_step)
            waves = self.chain.vocode(drawn.mels)
            covered = self._coverage(text)
            for job, cells, mel, wave, coverage, score in zip(
                batch, drawn.tokens, drawn.mels, waves, covered, drawn.scores, strict=True
            ):
                faded = fade_edges(wave[: order.samples], self.sample_rate)
                finished, gain = self._finished(faded, order)
                sounds.append(
                    Sound(
                        wave=finished,
                        sample_rate=self.sample_rate,
                        mel=mel.cpu().numpy(),
                        tokens=cells.cpu().numpy(),
                        prompt=job.prompt,
                        seed=job.seed,
                        settings=order.record,
                        score=score,
                        coverage=coverage,
                        gain=gain,
                    )
                )
        return sounds

    def _finished(self, wave: Tensor, order: Order) -> tuple[np.ndarray, float]:
        """The wave at its level, and the gain that brought it there.

        An edit takes its clip's, another sound the one asked for, and full scale at most, which a
        vocoder may exceed.
        """
        if order.edit is not None:
            return order.edit.join(order.edit.gain * wave).cpu().numpy(), order.edit.gain
        drawn = wave.cpu().numpy()
        gain = 1.0
        if order.settings.level is not None:
            gain = gain_to(order.settings.level, drawn, self.sample_rate)
        gain = min(gain, PEAK / max(float(np.abs(drawn).max()), 1e-9))
        return drawn * np.float32(gain), gain

    def _record(self, avoid: str, settings: SamplingSettings) -> dict[str, Any]:
        """What, with prompt and seed, makes a sound again."""
        record = {"bundle": self.bundle.config.name, "negative_prompt": avoid or None}
        record |= asdict(settings)
        return {name: value for name, value in record.items() if value is not None}

    def sampling_settings(self, **changes: Any) -> SamplingSettings:
        """The bundle's defaults with `changes` on top; an unknown name is refused."""
        defaults = self.bundle.config.defaults
        values: dict[str, Any] = {name: getattr(defaults, name, None) for name in SETTING_NAMES}
        for name, value in changes.items():
            if name not in values:
                raise InputError(f"unknown setting '{name}'; there are: {', '.join(SETTING_NAMES)}")
            values[name] = value
        if changes.get("stride") is not None and "num_inference_steps" not in changes:
            values["num_inference_steps"] = None
        settings = SamplingSettings(**values)
        self._check_best_of(settings.best_of)
        if not isinstance(settings.layered, bool):
            raise InputError(f"layered is true or false, not {settings.layered!r}")
        if settings.level is not None and not -60 <= settings.level <= 0:
            raise InputError(f"level must be from -60 to 0 dB, not {settings.level!r}")
        return settings

    def _check_best_of(self, best_of: int) -> None:
        whole = isinstance(best_of, int) and not isinstance(best_of, bool)
        if not whole or not 1 <= best_of <= MAX_CANDIDATES:
            raise InputError(f"best_of must be from 1 to {MAX_CANDIDATES}, not {best_of!r}")
        if best_of > 1 and self.matcher is None:
            raise InputError(
                f"best_of needs a matcher, and '{self.bundle.config.name}' has none; "
                "num_candidates with keep may serve"
            )

    def _coverage(self, text: TextFeatures) -> Sequence[dict[str, Any] | None]:
        """What the model knows of each prompt; None where the bundle cannot tell."""
        if self.bundle.coverage is None:
            return [None] * len(text)
        return self.bundle.coverage.of(text.pooled)

    def _check_duration(self, duration: float | None) -> float:
        seconds = self.bundle.config.defaults.duration if duration is None else duration
        if not isinstance(seconds, int | float) or not math.isfinite(seconds):
            raise InputError(f"duration must be a number of seconds, not {seconds!r}")
        if not MIN_DURATION <= seconds <= MAX_DURATION:
            raise InputError(
                f"duration must be from {MIN_DURATION} to {MAX_DURATION:.0f} s, not {seconds}"
            )
        return float(seconds)

    def _micro_batch(self, samples: int) -> int:
        """How many sounds of so many samples run at once."""
        chain = self.chain
        seconds = chain.columns(samples) * chain.column_samples / chain.sample_rate
        return max(1, int(self.max_batch_seconds / seconds))


def fade_edges(wave: Tensor, sample_rate: int, seconds: float = 0.004) -> Tensor:
    """Fade both ends over a few milliseconds, so that a cut never clicks."""
    length = min(round(seconds * sample_rate), len(wave) // 2)
    if length == 0:
        return wave
    ramp = torch.linspace(0.0, 1.0, length, device=wave.device)
    faded = wave.clone()
    faded[:length] *= ramp
    faded[-length:] *= ramp.flip(0)
    return faded
