"""A long mel cut into pieces that can be vocoded side by side, without a seam.

A vocoder that hears only so far (`reach`) makes of a piece with that much of its neighbours around
it what it makes of it in the whole; the neighbours' part of the wave is thrown away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

LONGEST = 432  # frames: 5 s, so that two cores share ten seconds
SHORTEST = 160  # frames: below it the neighbours would cost as much as is gained


@dataclass(frozen=True)
class Piece:
    """Frames start to end of a mel, heard from `first` to `last`."""

    start: int
    end: int
    first: int
    last: int


def cut(frames: int, reach: int) -> list[Piece]:
    """So many frames as pieces of about equal length, an even number of them if more than one.

    How they are cut depends on the length alone, never on the number of cores.
    """
    count = 2 * math.ceil(frames / (2 * LONGEST))
    if frames < 2 * SHORTEST:
        count = 1
    edges = [frames * place // count for place in range(count + 1)]
    return [
        Piece(start, end, max(0, start - reach), min(frames, end + reach))
        for start, end in pairwise(edges)
    ]


def vocode_pieces(
    mels: Sequence[Tensor],
    reach: int,
    hop_length: int,
    each: Callable[[Sequence[Tensor]], Sequence[Tensor]],
) -> list[Tensor]:
    """Mels [1, n_mels, L] -> waves [1, L * hop_length]. each: vocodes all pieces, one by one."""
    cuts = [cut(mel.shape[2], reach) for mel in mels]
    parts = [
        mel[:, :, piece.first : piece.last]
        for mel, pieces in zip(mels, cuts, strict=True)
        for piece in pieces
    ]
    waves = iter(each(parts))
    return [
        torch.cat([_kept(next(waves), piece, hop_length) for piece in pieces], dim=1)
        for pieces in cuts
    ]


def _kept(wave: Tensor, piece: Piece, hop_length: int) -> Tensor:
    """A piece's own part of the wave [1, samples] made of what it heard."""
    start, end = ((frame - piece.first) * hop_length for frame in (piece.start, piece.end))
    return wave[:, start:end]
