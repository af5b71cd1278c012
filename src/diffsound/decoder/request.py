"""One generation's request: refused in one line when it cannot be met, and cut into items."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from diffsound.decoder.contract import Known, SamplingSettings
from diffsound.errors import InputError
from diffsound.text.features import TextFeatures


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
    _check_drawing(settings)
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
    together: so many items in a row are one part there, the draws of one text for instance.
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


def _check_drawing(settings: SamplingSettings) -> None:
    if not (math.isfinite(settings.guidance_scale) and settings.guidance_scale >= 0):
        raise InputError(f"guidance_scale must be 0 or more, not {settings.guidance_scale}")
    if not 0 <= settings.guided_share <= 1:
        raise InputError(f"guided_share must lie in 0..1, not {settings.guided_share}")
    if not (math.isfinite(settings.temperature) and settings.temperature >= 0):
        raise InputError(f"temperature must be 0 or more, not {settings.temperature}")
    if not 0 < settings.truncation <= 1:
        raise InputError(f"truncation must be above 0 and at most 1, not {settings.truncation}")
    if not 0 <= settings.chosen_after <= 1:
        raise InputError(f"chosen_after must lie in 0..1, not {settings.chosen_after}")
    if settings.top_k is not None and settings.top_k < 1:
        raise InputError(f"top_k must be at least 1, not {settings.top_k}")
    if not 0 <= settings.remask < 1:
        raise InputError(f"remask must be at least 0 and below 1, not {settings.remask}")


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
