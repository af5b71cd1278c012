"""Pictures of mels."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from diffsound.audio.io import check_target, write_bytes
from diffsound.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

# Black through purple and orange to cream: lightness rises evenly, so that equal steps in
# decibels look like equal steps, in grey and to the colour-blind too.
_COLOURS = np.array(
    [
        (0, 0, 4),
        (27, 16, 68),
        (79, 18, 123),
        (129, 37, 129),
        (181, 54, 122),
        (229, 80, 100),
        (251, 135, 97),
        (254, 194, 140),
        (252, 253, 191),
    ],
    dtype=np.float64,
)
_AXIS_HEIGHT = 18
_MAX_TICKS = 10


def spectrogram_image(
    mel: ArrayLike, *, size: tuple[int, int] = (860, 240), seconds: float | None = None
) -> Image:
    """A mel [n_mels, L] as a picture, low frequencies at the bottom.

    size: width and height of the spectrogram. seconds: its duration; if given, a time axis is
    drawn beneath, adding to the height.
    """
    from PIL import Image, ImageDraw

    values = np.asarray(mel, dtype=np.float32)
    if values.ndim != 2 or not values.size:
        raise InputError(f"a mel to draw is [n_mels, L], not {list(values.shape)}")
    pixels = Image.fromarray(_colour(np.flipud(values)))
    picture = pixels.resize(size, Image.Resampling.BILINEAR)
    if seconds is None:
        return picture
    width, height = size
    framed = Image.new("RGB", (width, height + _AXIS_HEIGHT), "white")
    framed.paste(picture)
    draw = ImageDraw.Draw(framed)
    for time, label in _ticks(seconds):
        x = min(round(time / seconds * width), width - 1)
        draw.line((x, height, x, height + 3), fill="black")
        anchor = "lt" if x < 12 else "rt" if x > width - 12 else "mt"
        draw.text((x, height + 5), label, fill="black", anchor=anchor)
    return framed


def spectrogram_png(
    mel: ArrayLike,
    path: str | Path,
    *,
    size: tuple[int, int] = (860, 240),
    seconds: float | None = None,
    overwrite: bool = False,
) -> None:
    """Draw a mel [n_mels, L] into a PNG file; see `spectrogram_image`."""
    path = check_target(path, overwrite=overwrite, formats=("png",))
    buffer = io.BytesIO()
    spectrogram_image(mel, size=size, seconds=seconds).save(buffer, format="PNG", optimize=True)
    write_bytes(path, buffer.getvalue())


def _colour(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Values in [0, 1] (others are clipped) [H, W] to RGB [H, W, 3]."""
    clipped = np.clip(np.nan_to_num(values), 0, 1)
    stops = np.linspace(0, 1, len(_COLOURS))
    channels = [np.interp(clipped, stops, _COLOURS[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def _ticks(seconds: float) -> list[tuple[float, str]]:
    """Times of round steps (1, 2 or 5 times a power of ten) and their labels."""
    if not (math.isfinite(seconds) and seconds > 0):
        raise InputError(f"a duration to draw must be above 0 s, not {seconds:g}")
    smallest = seconds / _MAX_TICKS
    power = 10.0 ** math.floor(math.log10(smallest))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= smallest)
    count = math.floor(seconds / step + 1e-9)
    return [(i * step, f"{round(i * step, 6):g} s") for i in range(count + 1)]
