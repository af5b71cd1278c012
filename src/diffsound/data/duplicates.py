"""Near-duplicates: clips that are the same recording, up to level and re-encoding.

A clip's fingerprint is its mel on a coarse grid with every band's mean over time taken out, so
that it holds how this very recording moves and not what kind of sound it is: two takes of steady
rain have the same bands but unrelated fluctuations. Candidates come from locality-sensitive
hashing (signs of random projections), so millions of clips need no all-pairs comparison; their
correlation decides.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from diffsound.data.index import Duplicates

BANDS, CELLS = 8, 16
# 12 tables of 16 bits find a pair of correlation 0.98 with probability 0.99.
_TABLES, _BITS = 12, 16
# More than this in one hash bucket is a crowd of look-alikes; compared with the first ones only.
_CROWD = 200


def sound_fingerprint(mel: np.ndarray) -> np.ndarray:
    """int8 [128] of a mel [n_mels, L]: 8 bands × 16 time cells, quiet ends left out."""
    level = mel.max(axis=0)
    loud = np.flatnonzero(level > level.max() * 0.25)
    mel = mel[:, loud[0] : loud[-1] + 1] if len(loud) else mel
    coarse = _pool(_pool(mel, BANDS, axis=0), CELLS, axis=1)
    moving = coarse - coarse.mean(axis=1, keepdims=True)
    if np.abs(moving).max() < 1e-3:  # a steady tone: its spectrum is all there is
        moving = coarse - coarse.mean()
    peak = max(float(np.abs(moving).max()), 1e-9)
    return np.rint(moving / peak * 127).astype(np.int8).ravel()


def near_duplicates(
    ids: Sequence[str],
    fingerprints: np.ndarray,
    seconds: Sequence[float],
    *,
    threshold: float = 0.97,
) -> list[Duplicates]:
    """Groups of clips whose fingerprints correlate above the threshold and whose lengths agree
    within 2 %. fingerprints: int8 [clips, 128]."""
    if len(ids) < 2:
        return []
    vectors = fingerprints.astype(np.float32)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    length = np.asarray(seconds, dtype=np.float64)
    leader = np.arange(len(ids))
    weakest: dict[int, float] = {}

    def find(i: int) -> int:
        while leader[i] != i:
            leader[i] = leader[leader[i]]
            i = int(leader[i])
        return i

    for bucket in _buckets(vectors):
        similar = vectors[bucket] @ vectors[bucket[:_CROWD]].T
        close = np.abs(
            length[bucket][:, None] - length[bucket[:_CROWD]][None]
        ) <= 0.02 * np.maximum(length[bucket][:, None], length[bucket[:_CROWD]][None])
        for row, column in zip(*np.nonzero((similar > threshold) & close), strict=True):
            if row <= column:
                continue
            first, second = sorted((find(int(bucket[row])), find(int(bucket[column]))))
            correlation = float(similar[row, column])
            links = [weakest.pop(root, 1.0) for root in {first, second}]
            weakest[first] = min([*links, correlation]) if first != second else links[0]
            leader[second] = first
    groups: dict[int, list[str]] = defaultdict(list)
    for i, clip_id in enumerate(ids):
        groups[find(i)].append(clip_id)
    return [
        Duplicates(ids=tuple(members), correlation=round(weakest[root], 4))
        for root, members in sorted(groups.items())
        if len(members) > 1
    ]


def pack_fingerprint(fingerprint: np.ndarray) -> str:
    """A fingerprint as text for a shard's sidecar."""
    return base64.b64encode(fingerprint.tobytes()).decode("ascii")


def unpack_fingerprint(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype=np.int8)


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
        for low, high in zip(edges[:-1], edges[1:], strict=True)
    ]
    return np.stack(parts, axis=axis)
