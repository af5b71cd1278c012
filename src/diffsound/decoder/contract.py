"""The contract that both token decoders keep, and the checks of a request that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from diffsound.decoder.settings import SamplingSettings
from diffsound.errors import InputError
from diffsound.text.features import TextFeatures


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


# Called after every step with (steps done, steps in all, current tokens [B, F', L']).
# Cells not drawn yet hold the mask index K.
StepCallback = Callable[[int, int, Tensor], None]


class TokenDecoder(Protocol):
    """Text features to a grid of tokens; AR and Diffsound alike (both are nn.Modules)."""

    rows: int
    codebook_size: int
    text_dim: int

    @property
    def chooses_early(self) -> bool:
        """Whether a `Choice` can be made: coarse rows are finished before fine ones begin."""
        ...

    def loss(
        self, tokens: Tensor, text: TextFeatures, generator: torch.Generator | None = None
    ) -> DecoderLoss:
        """Training loss of tokens [B, F', L'] given their text."""
        ...

    def generate(
        self,
        text: TextFeatures,
        grid: tuple[int, int],
        generators: Sequence[torch.Generator],
        settings: SamplingSettings = SamplingSettings(),
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
        ...


def check_request(
    *,
    rows: int,
    codebook_size: int,
    text_dim: int,
    text: TextFeatures,
    grid: tuple[int, int],
    generators: Sequence[torch.Generator],
    settings: SamplingSettings,
    negative: TextFeatures | None,
    known: Known | None,
) -> None:
    """What both decoders ask of a request; the first thing wrong becomes an InputError."""
    if grid[0] != rows or grid[1] < 1:
        raise InputError(
            f"this decoder makes grids of {rows} rows and at least 1 column, not {tuple(grid)}"
        )
    if len(text) < 1 or len(generators) != len(text):
        raise InputError(
            f"give one generator per text: {len(text)} texts, {len(generators)} generators"
        )
    _check_text("text", text, text_dim)
    if settings.guidance_scale != 1:
        if negative is None:
            raise InputError(
                "guidance_scale other than 1 needs a negative text (the empty one by default)"
            )
        if len(negative) != len(text):
            raise InputError(f"{len(negative)} negative texts given for {len(text)} texts")
        _check_text("negative text", negative, text_dim)
    if known is not None:
        _check_known(known, (len(text), *grid), codebook_size)


def split_items(
    text: TextFeatures,
    negative: TextFeatures | None,
    device: torch.device,
    *,
    together: int = 1,
    trim: bool = True,
) -> list[tuple[slice, TextFeatures]]:
    """The batch as parts to run one by one: (which items, their texts, negatives after them).

    On a CPU every item is a part of its own, without the padding its neighbours need: products of
    other shapes round differently, and one flipped bit would make tokens depend on the batch. An
    accelerator runs the whole batch at once, where only rounding can make such a difference.
    together: this many items in a row are one part there, such as the takes of one text.
    trim: False keeps the padding, for a decoder that attends to it.
    """
    if device.type == "cpu":
        starts = range(0, len(text), together)
        parts = [slice(start, min(start + together, len(text))) for start in starts]
    else:
        parts = [slice(0, len(text))]
    texts = []
    for part in parts:
        batches = [text[part]] if negative is None else [text[part], negative[part]]
        if trim:
            batches = [_trim(batch) for batch in batches]
        texts.append(TextFeatures.cat(batches).to(device))
    return list(zip(parts, texts, strict=True))


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


def _trim(text: TextFeatures) -> TextFeatures:
    """Without the positions that are padding in every text of the batch."""
    length = int(text.mask.any(0).nonzero().max()) + 1
    return TextFeatures(text.features[:, :length], text.mask[:, :length], text.pooled)


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
