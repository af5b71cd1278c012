"""The outline of a wave, for drawing it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def envelope(wave: NDArray[np.float32], points: int) -> NDArray[np.float32]:
    """Lowest and highest sample of `points` equal stretches of a wave [samples]: [points, 2]."""
    edges = np.linspace(0, len(wave), points + 1)
    starts = np.minimum(edges[:-1].astype(int), len(wave) - 1)
    # A stretch shorter than a sample still shows the sample it lies in.
    stops = np.maximum(edges[1:].astype(int), starts + 1)
    stretches = [wave[start:stop] for start, stop in zip(starts, stops, strict=True)]
    return np.array([(part.min(), part.max()) for part in stretches], dtype=np.float32)
