"""Near-duplicates: clips that are the same recording, up to level and re-encoding.

A clip's fingerprint is its mel on a coarse grid, minus every band's mean over time. So it describes
how this recording changes, not what kind of sound it is: two takes of steady rain have the same
bands but unrelated fluctuations. Short impacts all change alike (they decay), so a pair must also
agree after the change common to all bands is removed. Candidates come from locality-sensitive
hashing (signs of random projections), so that millions of clips need no comparison of all pairs.
"""

from __future__ import annotations

import base64
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from diffsound.data.shards import Duplicates

BANDS, CELLS = 16, 16
# Chosen on 4 217 real clips: nearly all pairs above both are copies or takes that differ by an
# effect, and half of the copies at half level, 16 kHz and the lowest Vorbis quality are found.
MOVEMENT, DETAIL = 0.9, 0.85
# 16 tables of 14 bits find a pair whose movement correlates 0.95 with probability 0.98.
_TABLES, _BITS = 16, 14
# Buckets larger than this are compared block by block.
_BLOCK = 2000


def sound_fingerprint(mel: np.ndarray) -> np.ndarray:
    """int8 [256] of a mel [n_mels, L]: 16 bands × 16 time cells, quiet ends left out."""
    level = mel.max(axis=0)
    loud = np.flatnonzero(level > level.max() * 0.25)
    mel = mel[:, loud[0] : loud[-1] + 1] if len(loud) else mel
    coarse = _pool(_pool(mel, BANDS, axis=0), CELLS, axis=1)
    moving = coarse - coarse.mean(axis=1, keepdims=True)
    if np.abs(moving).max() < 1e-3:  # a steady tone: only its spectrum is left
        moving = coarse - coarse.mean()
    peak = max(float(np.abs(moving).max()), 1e-9)
    return np.rint(moving / peak * 127).astype(np.int8).ravel()


def near_duplicates(
    ids: Sequence[str], fingerprints: np.ndarray, seconds: Sequence[float]
) -> list[Duplicates]:
    """Groups of clips that sound the same and whose lengths agree within 2 %.

    fingerprints: int8 [clips, 256]. A group is joined by links; its `correlation` is the weakest.
    """
    if len(ids) < 2:
        return []
    movement, detail = movement_and_detail(fingerprints)
    leader = list(range(len(ids)))
    weakest: dict[int, float] = {}

    def find(i: int) -> int:
        while leader[i] != i:
            leader[i] = leader[leader[i]]
            i = leader[i]
        return i

    for i, j, correlation in _similar(movement, detail, np.asarray(seconds, dtype=np.float64)):
        first, second = sorted((find(i), find(j)))
        if first != second:
            weakest[first] = min(weakest.get(first, 1.0), weakest.get(second, 1.0), correlation)
            leader[second] = first
    groups: dict[int, list[str]] = defaultdict(list)
    for i, clip_id in enumerate(ids):
        groups[find(i)].append(clip_id)
    return [
        Duplicates(ids=tuple(members), correlation=round(weakest[root], 3))
        for root, members in sorted(groups.items())
        if len(members) > 1
    ]


def movement_and_detail(fingerprints: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors [N, 256] of fingerprints, and the same without what all bands share."""
    movement = np.asarray(fingerprints, dtype=np.float32)
    grid = movement.reshape(len(movement), BANDS, CELLS)
    detail = (grid - grid.mean(axis=1, keepdims=True)).reshape(len(movement), -1)
    return _unit(movement), _unit(detail)


def pack_fingerprint(fingerprint: np.ndarray) -> str:
    """A fingerprint as text for a shard's sidecar."""
    return base64.b64encode(fingerprint.tobytes()).decode("ascii")


def unpack_fingerprint(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype=np.int8)


def _similar(
    movement: np.ndarray, detail: np.ndarray, seconds: np.ndarray
) -> Iterator[tuple[int, int, float]]:
    """Pairs (i, j, correlation of the detail) that count as the same sound."""
    for bucket in _buckets(movement):
        for rows in np.array_split(bucket, -(-len(bucket) // _BLOCK)):
            moves = movement[rows] @ movement[bucket].T
            details = detail[rows] @ detail[bucket].T
            longer = np.maximum(seconds[rows][:, None], seconds[bucket][None])
            apart = np.abs(seconds[rows][:, None] - seconds[bucket][None])
            same = (moves > MOVEMENT) & (details > DETAIL) & (apart <= 0.02 * longer)
            for row, column in zip(*np.nonzero(same), strict=True):
                if rows[row] < bucket[column]:
                    yield int(rows[row]), int(bucket[column]), float(details[row, column])


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


def _buckets(vectors: np.ndarray) -> list[np.ndarray]:
    """Positions that share a hash in some table, each bucket sorted, in a fixed order."""
    rng = np.random.default_rng(0)
    weights = 1 << np.arange(_BITS)
    buckets = []
    for _ in range(_TABLES):
        planes = rng.standard_normal((vectors.shape[1], _BITS), dtype=np.float32)
        codes = (vectors @ planes > 0) @ weights
        order = np.argsort(codes, kind="stable")
        edges = np.flatnonzero(np.diff(codes[order])) + 1
        buckets += [part for part in np.split(order, edges) if len(part) > 1]
    return buckets


def _pool(values: np.ndarray, cells: int, axis: int) -> np.ndarray:
    """Means over `cells` equal stretches of an axis (nearest values when it is shorter)."""
    size = values.shape[axis]
    edges = np.linspace(0, size, cells + 1)
    parts = [
        np.take(values, range(int(low), max(int(low) + 1, int(np.ceil(high)))), axis=axis).mean(
            axis=axis
        )
        for low, high in itertools.pairwise(edges)
    ]
    return np.stack(parts, axis=axis)
