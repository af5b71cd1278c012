"""One generation by Diffsound: the network as a sampler's logits function, and its start."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from diffsound.decoder.config import DiffsoundConfig
from diffsound.decoder.contract import Choice, Known, StepCallback, kept_parts, split_items
from diffsound.decoder.diffusion import samplers
from diffsound.decoder.diffusion.draws import guide
from diffsound.decoder.diffusion.process import sample_stationary, sample_xt
from diffsound.decoder.diffusion.schedule import Schedule, Time, row_times
from diffsound.decoder.settings import SamplerName, SamplingSettings
from diffsound.decoder.transformer import DenoisingTransformer
from diffsound.errors import InputError
from diffsound.text.features import TextFeatures
from diffsound.threads import torch_threads


class Predictor:
    """`predict(tokens, t, rows) -> logits` for fixed texts, guidance included.

    The texts' keys and values are computed when it is made, the timesteps' scales and shifts by
    `prepare`; a step then costs what depends on the tokens only.
    """

    def __init__(
        self,
        transformer: DenoisingTransformer,
        text: TextFeatures,
        negative: TextFeatures | None,
        *,
        guidance_scale: float,
        guided_share: float = 1.0,
        together: int = 1,
    ) -> None:
        self.transformer = transformer
        self.guidance_scale = guidance_scale
        self.guided_share = guided_share
        self.device = next(transformer.parameters()).device
        with torch_threads(1):
            self.parts = [
                (items, transformer.read_text(texts))
                for items, texts in split_items(
                    text,
                    negative if self.guided else None,
                    self.device,
                    together=together,
                    trim=not transformer.config.attend_padding,
                )
            ]
        self.places: dict[int, int] = {}
        self.modulations: list[tuple[Tensor, ...]] = []

    @property
    def guided(self) -> bool:
        return self.guidance_scale != 1

    def guided_at(self, t: int) -> bool:
        """Whether a step that leaves time t is guided: the chain's first share is."""
        return self.guided and t > (1 - self.guided_share) * self.transformer.config.timesteps

    def prepare(self, times: Iterable[int]) -> None:
        """Compute the scales and shifts of these times, for all blocks and texts at once."""
        self.places = {t: place for place, t in enumerate(times)}
        t = torch.tensor(list(self.places), device=self.device)[:, None]
        with torch_threads(1):
            if self.transformer.pooled is None:  # then they are the same for every text
                self.modulations = [self.transformer.modulations(t, None)] * len(self.parts)
            else:
                self.modulations = [
                    self.transformer.modulations(t.expand(-1, len(context.pooled)), context.pooled)
                    for _, context in self.parts
                    if context.pooled is not None
                ]

    def only(self, kept: Sequence[int]) -> Predictor:
        """The same for some of the items alone, of every part at least one."""
        chosen = copy.copy(self)
        chosen.parts, chosen.modulations = [], []
        parts = [items for items, _ in self.parts]
        for place, items, texts in kept_parts(parts, kept, self.guided):
            chosen.parts.append((items, self.parts[place][1][texts]))
            # Scales that are the same for every text have one entry for all of them.
            scales = self.modulations[place]
            shared = self.transformer.pooled is None
            chosen.modulations.append(scales if shared else tuple(m[:, texts] for m in scales))
        return chosen

    def __call__(self, tokens: Tensor, t: int, rows: Tensor | None = None) -> Tensor:
        """tokens [B, F', L'] at time t -> logits [B, F', L', K], or of some rows [n] only."""
        place, guided = self.places[t], self.guided_at(t)
        logits = []
        for (items, context), modulations in zip(self.parts, self.modulations, strict=True):
            part = tokens[items]
            scales = tuple(m[place] for m in modulations)
            if guided:
                out = self.transformer(torch.cat((part, part)), scales, context, rows)
                toward, away = out.chunk(2)
                out = guide(toward, away, self.guidance_scale)
            else:
                scales = tuple(m[: len(part)] for m in scales)
                out = self.transformer(part, scales, context[: len(part)], rows)
            logits.append(out)
        return logits[0] if len(logits) == 1 else torch.cat(logits)


def check_sampling(
    config: DiffsoundConfig,
    settings: SamplingSettings,
    known: Known | None,
    choice: Choice | None = None,
) -> None:
    """Refuse what Diffsound's samplers cannot do, in one line."""
    if choice is not None and config.schedule.row_shares is None:
        raise InputError("takes can be compared on the way only where rows are drawn in turn")
    steps = config.timesteps
    if settings.num_inference_steps is not None and settings.stride is not None:
        raise InputError("give num_inference_steps or stride, not both")
    for name, value in (
        ("num_inference_steps", settings.num_inference_steps),
        ("stride", settings.stride),
        ("start_step", known.start_step if known else None),
    ):
        if value is not None and not 1 <= value <= steps:
            raise InputError(f"{name} must be from 1 to {steps} for this model, not {value}")
    if settings.remask and settings.sampler != "confidence":
        raise InputError("remask works with the sampler 'confidence' only")
    if config.schedule.row_shares is not None and settings.sampler != "ancestral":
        raise InputError(
            f"the sampler '{settings.sampler}' cannot draw rows one after another, as this model "
            "does; use 'ancestral'"
        )
    if settings.sampler == "confidence":
        if config.schedule.transition == "uniform":
            raise InputError("the sampler 'confidence' needs a model trained with a mask")
        if known is not None and len(set(known.keep.flatten(1).sum(1).tolist())) > 1:
            raise InputError("the sampler 'confidence' needs equally many kept cells in every item")
    if settings.sampler == "official":
        if config.schedule.transition != "mask_uniform":
            raise InputError("the sampler 'official' needs a model trained with mask_uniform")
        if settings.num_inference_steps not in (None, steps):
            raise InputError("the sampler 'official' takes a stride, not num_inference_steps")
        if settings.temperature != 1 or settings.top_k is not None:
            raise InputError("the sampler 'official' takes truncation, not temperature or top_k")


def sample(
    predict: Predictor,
    schedule: Schedule,
    windows: Tensor | None,
    shape: tuple[int, int, int],
    generators: Sequence[torch.Generator],
    settings: SamplingSettings,
    known: Known | None,
    callback: StepCallback | None,
    choice: Choice | None = None,
) -> Tensor:
    """Run the chosen sampler for tokens of `shape` [B, F', L'].

    windows: [F', 2], when each row is noised (`diffusion/schedule.py`), if not all alike.
    """
    first = schedule.steps
    shared: dict[str, Any] = {"truncation": settings.truncation, "callback": callback}
    if known is not None:
        known = Known(
            known.tokens.to(predict.device), known.keep.to(predict.device), known.start_step
        )
        first = known.start_step or first
        shared |= {"known": known.tokens, "keep": known.keep}

    def cell_times(t: int) -> Time:
        return t if windows is None else row_times(t, windows, schedule.steps)

    start = _start(settings.sampler, schedule, shape, generators, known, predict.device, cell_times)

    if settings.sampler == "official":
        from diffsound.decoder.diffusion.official import official_timesteps

        stride = settings.stride or 1
        predict.prepare(t for t, _ in official_timesteps(first, stride))
        return samplers.official(
            predict, schedule, start, generators, stride=stride, start_step=first, **shared
        )
    shared |= {"temperature": settings.temperature, "top_k": settings.top_k}
    evaluations = settings.num_inference_steps
    chain = samplers.timesteps_for(
        schedule.steps,
        num_steps=None if evaluations is None else min(evaluations, first),
        stride=settings.stride,
        start=first,
    )
    if settings.sampler == "confidence":
        # It picks its times by the share of masks left: any of them may come.
        predict.prepare(range(1, schedule.steps + 1))
        return samplers.confidence(
            predict, schedule, start, len(chain) - 1, generators, remask=settings.remask, **shared
        )
    predict.prepare(chain[:-1])
    if windows is not None:
        shared["cell_times"] = cell_times
    if choice is None:
        return samplers.ancestral(predict, schedule, start, chain, generators, **shared)

    cut, rows = _comparison(chain, choice.share, schedule.steps, cell_times)
    first_part, rest = slice(cut), slice(cut, None)
    begun = samplers.ancestral(
        predict, schedule, start, chain, generators, steps=first_part, **shared
    )
    kept = choice.best(begun[:, :rows])
    if cut + 1 == len(chain):
        return begun[kept]
    shared |= {name: shared[name][kept] for name in ("known", "keep") if name in shared}
    places = kept.tolist()
    return samplers.ancestral(
        predict.only(places),
        schedule,
        begun[kept],
        chain,
        [generators[place] for place in places],
        steps=rest,
        **shared,
    )


def _comparison(
    chain: Sequence[int], share: float, steps: int, cell_times: Callable[[int], Time]
) -> tuple[int, int]:
    """The first place in the chain, from `share` of it on, where rows are drawn; and how many."""
    for place, t in enumerate(chain):
        times = cell_times(t)
        assert isinstance(times, Tensor)
        rows = int((times == 0).sum())
        if rows and t <= (1 - share) * steps + 1e-9:
            return place, rows
    raise AssertionError("all rows are drawn at the end of a chain")


def _start(
    sampler: SamplerName,
    schedule: Schedule,
    shape: tuple[int, int, int],
    generators: Sequence[torch.Generator],
    known: Known | None,
    device: torch.device,
    cell_times: Callable[[int], Time],
) -> Tensor:
    """What the free cells hold before the first step."""
    if known is not None and known.start_step is not None:
        if sampler == "confidence":
            lost = 1 - float(schedule.stay[known.start_step])
            return samplers.mask_share(known.tokens, lost, generators, schedule, known.keep)
        times = cell_times(known.start_step)
        if isinstance(times, Tensor):
            times = times.expand(len(known.tokens), -1)
        return sample_xt(known.tokens, times, schedule, generators)
    if sampler == "ancestral":
        return sample_stationary(shape, schedule, generators, device)
    return torch.full(shape, schedule.mask_index, device=device)
