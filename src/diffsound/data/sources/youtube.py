"""Segments of YouTube videos, as AudioSet and AudioCaps name them, and the files people keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from diffsound.data.record import AudioLocation


def segment_stems(video: str, start: float, end: float) -> Iterator[str]:
    """File stems under which a segment is commonly kept, the most exact first.

    A leading "Y" is common too: it keeps ids that begin with "-" from looking like options.
    """
    for prefix in (video, f"Y{video}"):
        yield f"{prefix}_{start:.3f}_{end:.3f}"
        yield f"{prefix}_{round(start * 1000)}_{round(end * 1000)}"
        yield f"{prefix}_{start:g}_{end:g}"
        yield f"{prefix}_{round(start * 1000)}"
        yield f"{prefix}_{start:g}"
        yield prefix


def segment_location(found: AudioLocation, start: float, end: float) -> AudioLocation:
    """The segment of a found file (which may be the segment already, or the whole video)."""
    return replace(found, start=start, end=end)
