"""What is asked of a token decoder, and how Diffsound's samplers answer it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from diffsound.decoder import SamplingSettings
from diffsound.decoder.config import ARConfig, DiffsoundConfig
from diffsound.decoder.diffusion import samplers
from diffsound.decoder.diffusion.process import sample_stationary, sample_xt
from diffsound.errors import InputError
from diffsound.text.features import TextFeatures

if TYPE_CHECKING:
    from diffsound.decoder.diffsound import Diffsound, Predictor

DEFAULT_SAMPLING = SamplingSettings()

# Called after every step with (steps done, steps in all, current tokens [B, F', L']).
# Cells not drawn yet hold the mask index K.
StepCallback = Callable[[int, int, Tensor], None]


@dataclass(frozen=True)
class Known:
    """Tokens given beforehand: for inpainting and continuing, and (with `start_step`) variation.

    tokens: [B, F', L'] the clip's own tokens.
    keep: [B, F', L'] bool, True at cells that must come out exactly as given.
    start_step: None starts free cells from the stationary distribution; t in 1..T starts them
        from q(x_t | tokens), so a small t stays near the original.
    """

    tokens: Tensor
    keep: Tensor
    start_step: int | None = None


@dataclass(frozen=True)
class Choice:
    """Which of the takes of a text are worth finishing.

    share: of the chain, from its start at T, after which they are compared.
    best: the rows that are drawn by then, [B, k, L'] -> which items go on, int64, rising; at least
        one of those drawn `together`.
    """

    share: float
    best: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class DecoderLoss:
    """loss: a scalar to differentiate; per_item: [B], detached; logs: named detached scalars."""

    loss: Tensor
    per_item: Tensor
    logs: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class TokenRequest:
    """The arguments of `TokenDecoder.generate`."""

    text: TextFeatures
    grid: tuple[int, int]
    generators: Sequence[torch.Generator]
    settings: SamplingSettings = DEFAULT_SAMPLING
    negative: TextFeatures | None = None
    known: Known | None = None
    callback: StepCallback | None = None
    together: int = 1
    choice: Choice | None = None

    @property
    def guided(self) -> bool:
        return self.settings.guidance_scale != 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """[B, F', L'] of the tokens."""
        return (len(self.text), *self.grid)


class TokenDecoder(nn.Module, ABC):
    """Text features to a grid of tokens; AR and Diffsound alike."""

    chooses_early: bool
    """Whether a `Choice` can be made: coarse rows are finished before fine ones begin."""

    def __init__(self, config: DiffsoundConfig | ARConfig) -> None:
        super().__init__()
        self.rows = config.rows
        self.codebook_size = config.codebook_size
        self.text_dim = config.text_dim

    @abstractmethod
    def loss(
        self, tokens: Tensor, text: TextFeatures, generator: torch.Generator | None = None
    ) -> DecoderLoss:
        """Training loss of tokens [B, F', L'] given their text."""

    @abstractmethod
    def _check(self, request: TokenRequest) -> None:
        """Refuse what this kind of decoder cannot do."""

    @abstractmethod
    def _draw(self, request: TokenRequest) -> Tensor:
        """The tokens of a request that was checked."""

    @torch.no_grad()
    def generate(
        self,
        text: TextFeatures,
        grid: tuple[int, int],
        generators: Sequence[torch.Generator],
        settings: SamplingSettings = DEFAULT_SAMPLING,
        *,
        negative: TextFeatures | None = None,
        known: Known | None = None,
        callback: StepCallback | None = None,
        together: int = 1,
        choice: Choice | None = None,
    ) -> Tensor:
        """Draw tokens [B, F', L'], or only those of the items chosen on the way; one CPU generator
        per item.

        An item's tokens depend on its own text and generator only, never on its neighbours in
        the batch, but for the `together` items in a row that one caller always asks for at once:
        those may run as one, which is cheaper. `negative` is what guidance moves away from (the
        encoded empty text when the user gave none); it is needed when guidance_scale != 1.
        `choice` is for decoders that draw rows in turn (`chooses_early`); others refuse it.
        """
        request = TokenRequest(
            text, grid, generators, settings, negative, known, callback, together, choice
        )
        _check_request(self, request)
        self._check(request)
        was_training = self.training
        self.eval()
        try:
            return self._draw(request)
        finally:
            self.train(was_training)


def _check_request(decoder: TokenDecoder, request: TokenRequest) -> None:
    """What every decoder asks of a request; the first thing wrong becomes an InputError."""
    text, negative, grid = request.text, request.negative, request.grid
    if grid[0] != decoder.rows or grid[1] < 1:
        raise InputError(
            f"this decoder makes grids of {decoder.rows} rows and at least 1 column, "
            f"not {tuple(grid)}"
        )
    if len(text) < 1 or len(request.generators) != len(text):
        raise InputError(
            f"give one generator per text: {len(text)} texts, {len(request.generators)} generators"
        )
    _check_text("text", text, decoder.text_dim)
    if request.guided:
        if negative is None:
            raise InputError(
                "guidance_scale other than 1 needs a negative text (the empty one by default)"
            )
        if len(negative) != len(text):
            raise InputError(f"{len(negative)} negative texts given for {len(text)} texts")
        _check_text("negative text", negative, decoder.text_dim)
    if request.known is not None:
        _check_known(request.known, request.shape, decoder.codebook_size)


def _check_text(name: str, text: TextFeatures, text_dim: int) -> None:
    if text.dim != text_dim:
        raise InputError(
            f"the {name} has {text.dim} features, this decoder needs {text_dim}: "
            "use the text encoder it was trained with"
        )
    if not bool(text.mask.any(1).all()):
        raise InputError(f"a {name} has no tokens at all")


def _check_known(known: Known, shape: tuple[int, ...], codebook_size: int) -> None:
    for name, tensor in (("tokens", known.tokens), ("keep", known.keep)):
        if tuple(tensor.shape) != shape:
            raise InputError(f"known {name} have shape {tuple(tensor.shape)}, not {shape}")
    if known.keep.dtype != torch.bool:
        raise InputError(f"known keep must be bool, not {known.keep.dtype}")
    low, high = int(known.tokens.min()), int(known.tokens.max())
    if low < 0 or high >= codebook_size:
        raise InputError(
            f"known tokens must lie in 0..{codebook_size - 1}, found {low if low < 0 else high}: "
            "were they made by another codec?"
        )


def split_items(
    request: TokenRequest, device: torch.device, *, trim: bool = True
) -> list[tuple[slice, TextFeatures]]:
    """The batch as parts to run one by one: (which items, their texts, negatives after them).

    On a CPU every item is a part of its own, without the padding its neighbours need: products of
    other shapes round differently, and one flipped bit would make tokens depend on the batch. An
    accelerator runs the whole batch at once, where only rounding can make such a difference.
    The items that are asked for `together`, such as the takes of one text, are one part anyway.
    trim: False keeps the padding, for a decoder that attends to it.
    """
    text, negative = request.text, request.negative if request.guided else None
    size = request.together if device.type == "cpu" else len(text)
    parts = []
    for start in range(0, len(text), size):
        items = slice(start, min(start + size, len(text)))
        batches = [text[items]] if negative is None else [text[items], negative[items]]
        if trim:
            batches = [_trim(batch) for batch in batches]
        parts.append((items, TextFeatures.cat(batches).to(device)))
    return parts


def _trim(text: TextFeatures) -> TextFeatures:
    """Without the positions that are padding in every text of the batch."""
    length = int(text.mask.any(0).nonzero().max()) + 1
    return TextFeatures(text.features[:, :length], text.mask[:, :length], text.pooled)


def kept_parts(
    parts: Sequence[slice], kept: Sequence[int], paired: bool
) -> Iterator[tuple[int, slice, list[int]]]:
    """What is left of `split_items` when only the items `kept` (rising) go on.

    For every part with one of them: its place among the parts, its items among those kept, and
    which of its texts they have; with `paired` every text's negative is as many places after it as
    the part has items.
    """
    start = 0
    for place, part in enumerate(parts):
        mine = [item - part.start for item in kept if part.start <= item < part.stop]
        if mine:
            negatives = [part.stop - part.start + item for item in mine] if paired else []
            yield place, slice(start, start + len(mine)), mine + negatives
            start += len(mine)


def check_sampling(config: DiffsoundConfig, request: TokenRequest) -> None:
    """Refuse what Diffsound's samplers cannot do, in one line."""
    settings, known, steps = request.settings, request.known, config.timesteps
    if request.choice is not None and config.schedule.row_shares is None:
        raise InputError("takes can be compared on the way only where rows are drawn in turn")
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


def sample(decoder: Diffsound, predict: Predictor, request: TokenRequest) -> Tensor:
    """Run the chosen sampler for the tokens [B, F', L'] of a request."""
    settings, schedule, generators = request.settings, decoder.schedule, request.generators
    known, first = request.known, schedule.steps
    options: dict[str, Any] = {"truncation": settings.truncation, "callback": request.callback}
    if known is not None:
        known = replace(
            known, tokens=known.tokens.to(predict.device), keep=known.keep.to(predict.device)
        )
        first = known.start_step or first
        options |= {"known": known.tokens, "keep": known.keep}
    start = _start(decoder, request, known, predict.device)

    if settings.sampler == "official":
        from diffsound.decoder.diffusion.official import official_timesteps

        stride = settings.stride or 1
        predict.prepare(t for t, _ in official_timesteps(first, stride))
        return samplers.official(
            predict, schedule, start, generators, stride=stride, start_step=first, **options
        )
    options |= {"temperature": settings.temperature, "top_k": settings.top_k}
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
            predict, schedule, start, len(chain) - 1, generators, remask=settings.remask, **options
        )
    predict.prepare(chain[:-1])
    if decoder.windows is not None:
        options["cell_times"] = decoder.cell_times
    if request.choice is None:
        return samplers.ancestral(predict, schedule, start, chain, generators, **options)

    cut, rows = _comparison(decoder, chain, request.choice.share)
    begun = samplers.ancestral(
        predict, schedule, start, chain, generators, steps=slice(cut), **options
    )
    kept = request.choice.best(begun[:, :rows])
    if cut + 1 == len(chain):
        return begun[kept]
    options |= {name: options[name][kept] for name in ("known", "keep") if name in options}
    places = kept.tolist()
    chosen = [generators[place] for place in places]
    return samplers.ancestral(
        predict.only(places),
        schedule,
        begun[kept],
        chain,
        chosen,
        steps=slice(cut, None),
        **options,
    )


def _comparison(decoder: Diffsound, chain: Sequence[int], share: float) -> tuple[int, int]:
    """The first place in the chain, from `share` of it on, where rows are drawn; and how many."""
    for place, t in enumerate(chain):
        times = decoder.cell_times(t)
        assert isinstance(times, Tensor)
        rows = int((times == 0).sum())
        if rows and t <= (1 - share) * decoder.schedule.steps + 1e-9:
            return place, rows
    raise AssertionError("all rows are drawn at the end of a chain")


def _start(
    decoder: Diffsound, request: TokenRequest, known: Known | None, device: torch.device
) -> Tensor:
    """What the free cells hold before the first step."""
    schedule, generators, sampler = decoder.schedule, request.generators, request.settings.sampler
    if known is not None and known.start_step is not None:
        if sampler == "confidence":
            lost = 1 - float(schedule.stay[known.start_step])
            return samplers.mask_share(known.tokens, lost, generators, schedule, known.keep)
        times = decoder.cell_times(known.start_step)
        if isinstance(times, Tensor):
            times = times.expand(len(known.tokens), -1)
        return sample_xt(known.tokens, times, schedule, generators)
    if sampler == "ancestral":
        return sample_stationary(request.shape, schedule, generators, device)
    return torch.full(request.shape, schedule.mask_index, device=device)
