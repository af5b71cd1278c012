"""Text to sound: text → features → tokens → mel → wave.

    sounds = TextToSound.from_pretrained()("a dog barks", duration=4, seed=7)
    sounds[0].save("dog.wav")

Every sound is reproducible on its own: candidate i of a call with seed s is what a call with
seed s + i makes, whichever prompts and candidates run beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor

from diffsound.decoder.sampling import Choice
from diffsound.errors import InputError
from diffsound.generation.jobs import (
    EditOptions,
    Job,
    LoadOptions,
    Progress,
    ProgressCallback,
    decoder_threads,
    generators,
    make_jobs,
    noise_seed,
    part_of,
    pick,
    take_seed,
)
from diffsound.generation.scenes import ScenePlanner, compose
from diffsound.generation.settings import (
    GenerationSettings,
    GivenSettings,
    KeepSettings,
    check,
    complete,
)
from diffsound.generation.sound import Sound, Sounds, at_level, at_one_level
from diffsound.judges.ranking import LikelihoodRanker, MatcherRanker, Ranker, best_takes
from diffsound.model.backends import default_backend, networks, usable_device
from diffsound.model.bundle import RANKERS, Bundle
from diffsound.text import clean_prompt
from diffsound.text.features import TextFeatures
from diffsound.threads import one_core_each, torch_threads
from diffsound.vocoder import vocode_pieces

if TYPE_CHECKING:
    from diffsound.generation.edits import Clip, Edit


class TextToSound:
    """A loaded bundle, ready to make and edit sounds."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        device: torch.device | str = "cpu",
        backend: str | None = None,
        max_batch_seconds: float = 60.0,
        ranker: Ranker | None = None,
    ) -> None:
        """backend: what runs the networks, "torch", "int8" or "onnx"; None takes the bundle's.
        max_batch_seconds: bounds memory; sounds are made in micro-batches of at most this length.
        ranker: chooses among candidates; None takes the bundle's matcher, or else its captioner.
        """
        if max_batch_seconds <= 0:
            raise InputError("max_batch_seconds must be more than 0")
        self.bundle = bundle
        self.device = usable_device(device)
        self.backend = backend or default_backend(bundle, self.device)
        self.max_batch_seconds = max_batch_seconds
        self.decoder, self.codec, self.vocoder = networks(bundle, self.backend, self.device)
        self._ranker = ranker
        self._planner = ScenePlanner(bundle, lambda text: self.encode_text([text]).pooled)

    @classmethod
    def from_pretrained(
        cls, source: str | Path | None = None, **options: Unpack[LoadOptions]
    ) -> TextToSound:
        """From a folder, a hub id, or (None) the bundle that ships with the package."""
        return cls(Bundle.from_pretrained(source), **options)

    def __repr__(self) -> str:
        return f"TextToSound({self.bundle.config.name!r}, {self.backend} on {self.device})"

    @property
    def sample_rate(self) -> int:
        return self.bundle.sample_rate

    def __call__(
        self,
        prompt: str | Sequence[str],
        *,
        num_candidates: int = 1,
        keep: int | None = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        callback: ProgressCallback | None = None,
        **settings: Unpack[GivenSettings],
    ) -> Sounds:
        """Make `num_candidates` sounds for each prompt, prompt by prompt.

        keep: return only this many of each prompt's candidates, best first, by the ranker
        (section VIII-D); None returns all, in the order of their seeds.
        seed: reproduces the result; drawn from `generator`, or at random, when missing.
        settings: any of `GenerationSettings`, in place of the bundle's defaults.
        """
        jobs = make_jobs(prompt, num_candidates, seed, generator)
        if keep is not None:
            self.check_keep(keep, num_candidates)
        sounds = self.run_jobs(jobs, callback=callback, **settings)
        if keep is None:
            return Sounds(sounds)
        groups = (sounds[i : i + num_candidates] for i in range(0, len(sounds), num_candidates))
        return Sounds(sound for group in groups for sound in self.rank(group, keep))

    def inpaint(
        self,
        source: Clip,
        prompt: str,
        start: float,
        end: float,
        *,
        low: float | None = None,
        high: float | None = None,
        **options: Unpack[EditOptions],
    ) -> Sounds:
        """Regenerate the seconds from `start` to `end`; the rest stays the original recording.

        low, high: limit the change to these frequencies in Hz.
        options: those of a call, but for `keep` and `duration`.
        """
        from diffsound.generation.edits import inpaint

        return self._edit(inpaint(self.bundle, source, start, end, low, high), prompt, **options)

    def extend(
        self, source: Clip, prompt: str, seconds: float, **options: Unpack[EditOptions]
    ) -> Sounds:
        """Continue a clip for `seconds`; the clip itself stays as it was."""
        from diffsound.generation.edits import extend

        return self._edit(extend(self.bundle, source, seconds), prompt, **options)

    def vary(
        self, source: Clip, prompt: str, strength: float = 0.5, **options: Unpack[EditOptions]
    ) -> Sounds:
        """Another take of a clip: re-noised to step strength·T and denoised again."""
        from diffsound.generation.edits import vary

        return self._edit(vary(self.bundle, source, strength), prompt, **options)

    def variations(
        self,
        prompt: str,
        count: int,
        strength: float = 0.5,
        *,
        seed: int | None = None,
        callback: ProgressCallback | None = None,
        **settings: Unpack[GivenSettings],
    ) -> Sounds:
        """A sound and `count` - 1 variations of it at the same level; the i-th has the seed + i."""
        from diffsound.generation.edits import vary

        first, *others = make_jobs(prompt, count, seed)
        (sound,) = self.run_jobs([first], callback=part_of(callback, 0, 1, count), **settings)
        edit, rest = vary(self.bundle, sound, strength), part_of(callback, 1, count - 1, count)
        return at_one_level([sound, *self.run_jobs(others, edit=edit, callback=rest, **settings)])

    def _edit(
        self,
        edit: Edit,
        prompt: str,
        *,
        num_candidates: int = 1,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        callback: ProgressCallback | None = None,
        **settings: Unpack[GivenSettings],
    ) -> Sounds:
        jobs = make_jobs(prompt, num_candidates, seed, generator)
        return Sounds(self.run_jobs(jobs, edit=edit, callback=callback, **settings))

    def run_jobs(
        self,
        jobs: Sequence[Job],
        *,
        edit: Edit | None = None,
        callback: ProgressCallback | None = None,
        **given: Unpack[GivenSettings],
    ) -> list[Sound]:
        """One sound per job. Callers can share a batch: each is what a separate call would make."""
        settings = self.settings(**given)
        if edit is None:
            plans = [self._planner.plan(job, settings) for job in jobs]
        else:
            # An edit must fit its surroundings, which neither ranker nor mixer takes into account.
            if given.get("loop"):
                from diffsound.generation.loops import NOT_FOR_EDITS

                raise InputError(NOT_FOR_EDITS)
            settings = settings.model_copy(update={"best_of": 1, "layered": False, "loop": False})
            plans = [edit.samples] * len(jobs)
        pieces = [
            piece
            for job, plan in zip(jobs, plans, strict=True)
            for piece in ([(job, plan)] if isinstance(plan, int) else plan.pieces)
        ]
        progress = Progress(callback, len(pieces))
        made: dict[int, Sound] = {}
        for places in self._batches([samples for _, samples in pieces], settings.best_of):
            progress.next_batch(len(places))
            batch = [pieces[place][0] for place in places]
            sounds = self._make(batch, pieces[places[0]][1], settings, progress, edit)
            made |= zip(places, sounds, strict=True)
        ready = (made[place] for place in range(len(pieces)))
        return [
            next(ready)
            if isinstance(plan, int)
            else compose(self.bundle, job, plan, [next(ready) for _ in plan.jobs])
            for job, plan in zip(jobs, plans, strict=True)
        ]

    def _batches(self, lengths: Sequence[int], takes: int) -> Iterator[list[int]]:
        """Places of sounds of the same length, in micro-batches of at most max_batch_seconds."""
        for samples in dict.fromkeys(lengths):
            places = [place for place, length in enumerate(lengths) if length == samples]
            seconds = self.bundle.columns(samples) * self.bundle.column_samples / self.sample_rate
            size = max(1, int(self.max_batch_seconds / seconds) // takes)
            yield from (places[start : start + size] for start in range(0, len(places), size))

    @torch.inference_mode()
    def _make(
        self,
        jobs: Sequence[Job],
        samples: int,
        settings: GenerationSettings,
        progress: Progress,
        edit: Edit | None,
    ) -> list[Sound]:
        """One micro-batch: text → features → tokens → mel → wave, the best of several takes."""
        takes, columns = settings.best_of, self.bundle.columns(samples)
        seeds = [take_seed(job.seed, take) for job in jobs for take in range(takes)]

        # Text to features.
        text = self.encode_text([job.prompt for job in jobs]).repeat(takes)
        negative = None
        if settings.guidance_scale != 1.0:
            negative = self.encode_text([settings.negative_prompt or ""]).repeat(len(seeds))

        # Features to tokens. A decoder that draws coarse rows first finishes the best takes only.
        chosen = torch.arange(len(seeds))

        def choose(rows: Tensor) -> Tensor:
            nonlocal chosen
            sketches = self.sketch(rows)
            chosen = best_takes(self.matcher.fit(text, sketches), sketches, takes)
            return chosen

        early = takes > 1 and settings.chosen_after < 1 and self.chooses_early
        with decoder_threads(columns):
            tokens = self.decoder.generate(
                text,
                (self.bundle.codec.rows, columns),
                generators(seeds),
                settings,
                negative=negative,
                known=None if edit is None else edit.known(len(seeds)),
                callback=progress.first_half if settings.loop else progress.step,
                together=takes,
                choice=Choice(settings.chosen_after, choose) if early else None,
            )
        seeds, text = pick(seeds, chosen), text[chosen]

        # Tokens to mel, and the choice among finished takes if there was none before.
        noise = generators(map(noise_seed, seeds))
        mels = self.decode(tokens, noise, text.pooled)
        scores: list[float | None] = [None] * len(jobs)
        if takes > 1:
            fits = self.matcher.fit(text, mels)
            if not early:
                chosen = best_takes(fits, mels, takes)
                tokens, mels, text = tokens[chosen], mels[chosen], text[chosen]
                seeds, noise, fits = pick(seeds, chosen), pick(noise, chosen), pick(fits, chosen)
            scores = list(fits)

        # Mel to wave.
        if settings.loop:
            from diffsound.generation.loops import make_loops

            tokens, mels, waves = make_loops(
                self, text, negative, tokens, seeds, settings, progress, samples
            )
        else:
            waves = self.vocode(mels, noise)

        record, known = self._record(settings, samples, edit), self.bundle.coverage
        coverage = [None] * len(jobs) if known is None else known.of(text.pooled)
        sounds = []
        for i, job in enumerate(jobs):
            wave, gain = at_level(waves[i, :samples], self.sample_rate, settings, edit)
            sounds.append(
                Sound(
                    wave=wave,
                    sample_rate=self.sample_rate,
                    mel=mels[i].cpu().numpy(),
                    tokens=tokens[i].cpu().numpy(),
                    prompt=job.prompt,
                    seed=job.seed,
                    settings=record,
                    score=scores[i],
                    coverage=coverage[i],
                    gain=gain,
                )
            )
        return sounds

    def natural_duration(self, prompt: str) -> float:
        """Seconds that a prompt's sound lasts by itself (`scenes.py`): `duration=None`."""
        return self._planner.seconds(clean_prompt(prompt))

    @torch.inference_mode()
    def encode_text(self, texts: list[str]) -> TextFeatures:
        """Texts -> features [B, S, D]."""
        with torch_threads(1):
            return self.bundle.text_encoder(texts).to(self.device)

    @torch.inference_mode()
    def decode(
        self,
        tokens: Tensor,
        noise: Sequence[torch.Generator] | None = None,
        text: Tensor | None = None,
    ) -> Tensor:
        """tokens [B, F', L'] -> mel [B, n_mels, L] in [0, 1]; noise: a generator for each.

        text: pooled, [B, text_dim], for a codec whose texture depends on it. Item by item, and on a
        CPU each on one core: the same bits alone and in a batch.
        """
        each = tokens.to(self.device).split(1)
        drawn: Sequence[torch.Generator | None] = noise or [None] * len(each)
        texts = [None] * len(each) if text is None else text.to(self.device).split(1)
        items = list(zip(each, drawn, texts, strict=True))
        mels = one_core_each(lambda item: self.codec.decode(*item), items)
        return torch.cat(mels).clamp(0.0, 1.0).float()

    @torch.inference_mode()
    def sketch(self, tokens: Tensor) -> Tensor:
        """The first rows of tokens, [B, k, L'] -> a rough mel [B, n_mels, L] in [0, 1]."""
        with torch_threads(1):
            parts = [self.bundle.codec.sketch(part) for part in tokens.to(self.device).split(1)]
        return torch.cat(parts).clamp(0.0, 1.0).float()

    @torch.inference_mode()
    def vocode(self, mels: Tensor, noise: Sequence[torch.Generator] | None = None) -> Tensor:
        """mel [B, n_mels, L] -> wave [B, L·hop]; noise: a generator for each.

        Item by item, as `decode`; on a CPU long ones in pieces, if the vocoder can.
        """
        each, reach = mels.to(self.device).split(1), self.bundle.vocoder.reach
        if reach is not None and self.device.type == "cpu":
            hop = self.bundle.config.codec.mel.hop_length
            waves = vocode_pieces(each, reach, hop, partial(one_core_each, self.vocoder))
        else:
            drawn: Sequence[torch.Generator | None] = noise or [None] * len(each)
            items = list(zip(each, drawn, strict=True))
            waves = one_core_each(lambda item: self.vocoder(*item), items)
        return torch.cat(waves).float()

    @property
    def chooses_early(self) -> bool:
        """Whether takes can be compared by their coarse rows, before they are finished."""
        return self.bundle.decoder.chooses_early and self.bundle.codec.sketches

    @cached_property
    def matcher(self) -> MatcherRanker:
        """What compares takes; loaded on first use."""
        return MatcherRanker(self.bundle.matcher.to(self.device), self.bundle.text_encoder)

    @property
    def ranks(self) -> bool:
        """Whether it can choose among candidates."""
        return self._ranker is not None or any(kind in self.bundle.judges for kind in RANKERS)

    @cached_property
    def ranker(self) -> Ranker:
        """What chooses among candidates, if anything does; loaded on first use."""
        if self._ranker is not None:
            return self._ranker
        if "matcher" in self.bundle.judges:
            return self.matcher
        from diffsound.judges.captioner import load_captioner

        return LikelihoodRanker(load_captioner(self.bundle.judges["captioner"]).to(self.device))

    def check_keep(self, keep: int, num_candidates: int) -> None:
        """Refuse a choice that cannot be made, before any candidate is."""
        if not self.ranks:
            raise InputError(
                f"'{self.bundle.config.name}' has no ranker to choose among candidates with; "
                "a bundle with a matcher or a captioner has one"
            )
        check(KeepSettings, {"keep": keep, "num_candidates": num_candidates})

    def rank(self, sounds: Sequence[Sound], keep: int | None = None) -> Sounds:
        """Sounds of one prompt, best first, each with its score; the first `keep` of them."""
        self.check_keep(keep or len(sounds), len(sounds))
        scores = self.ranker.score(sounds[0].prompt, sounds)
        scored = [replace(s, score=score) for s, score in zip(sounds, scores, strict=True)]
        return Sounds(sorted(scored, key=lambda sound: -(sound.score or 0.0))[:keep])

    def settings(self, **given: Unpack[GivenSettings]) -> GenerationSettings:
        """The bundle's defaults with what is given on top, checked."""
        # A bundle's duration is for sounds of unknown length; see `natural_duration`.
        settings = complete(self.bundle.config.defaults, {"duration": None, **given})
        if settings.best_of > 1 and "matcher" not in self.bundle.judges:
            raise InputError(
                f"best_of needs a matcher, and '{self.bundle.config.name}' has none; "
                "num_candidates with keep may serve"
            )
        negative = settings.negative_prompt or ""
        avoid = clean_prompt(negative) if negative.strip() else None
        return settings.model_copy(update={"negative_prompt": avoid})

    def _record(
        self, settings: GenerationSettings, samples: int, edit: Edit | None
    ) -> dict[str, Any]:
        """What, with prompt and seed, makes a sound again."""
        values = {"bundle": self.bundle.config.name} | settings.model_dump()
        if settings.duration is None:
            values["duration"] = round(samples / self.sample_rate, 4)
        if edit is not None:
            del values["duration"]
            values |= edit.record
        return {name: value for name, value in values.items() if value is not None}
