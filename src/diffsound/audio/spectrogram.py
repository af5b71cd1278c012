"""Pictures of mels, and figures of waves with axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
_MAX_TICKS = 10

# The figure, in pixels: at 300 dots per inch it is as wide as a page's text, with 8-point letters.
_PLOT = (1500, 560)
_LEFT, _TOP, _RIGHT, _BOTTOM = 150, 80, 230, 120
_BAR, _GAP = 36, 30  # the colour scale's width, and its distance from the plot
_LETTERS, _TICK = 34, 10
_DPI = 300

_FREQUENCIES = (250, 500, 1000, 2000, 4000, 8000, 16000, 32000)
_SHOWN_DB = 80  # below the loudest
_SILENCE = 1e-3  # a magnitude; a sound that never exceeds it is drawn dark


def spectrogram_image(mel: ArrayLike, *, size: tuple[int, int] = (860, 240)) -> Image:
    """A mel [n_mels, L] as a picture of `size` (width, height), low frequencies at the bottom."""
    from PIL import Image

    values = np.asarray(mel, dtype=np.float32)
    if values.ndim != 2 or not values.size:
        raise InputError(f"a mel to draw is [n_mels, L], not {list(values.shape)}")
    pixels = Image.fromarray(_colour(np.flipud(values)))
    return pixels.resize(size, Image.Resampling.BILINEAR)


def spectrogram_figure(wave: ArrayLike, sample_rate: int, title: str = "") -> Image:
    """A wave [samples] as a figure: mel-spectrogram, axes with units, title and colour scale."""
    from PIL import Image, ImageDraw, ImageFont

    magnitudes, edges = _full_band(np.asarray(wave, dtype=np.float32), sample_rate)
    relative = magnitudes / max(float(magnitudes.max()), _SILENCE)
    decibels = 20 * np.log10(np.maximum(relative, 10 ** (-_SHOWN_DB / 20)))
    width, height = _PLOT
    right, bottom = _LEFT + width, _TOP + height
    figure = Image.new("RGB", (right + _RIGHT, bottom + _BOTTOM), "white")
    figure.paste(spectrogram_image(1 + decibels / _SHOWN_DB, size=_PLOT), (_LEFT, _TOP))
    draw = ImageDraw.Draw(figure)
    font = ImageFont.load_default(_LETTERS)

    def mark(x: float, y: float, along: tuple[int, int], label: str, anchor: str) -> None:
        """A tick outwards from the edge, and its label."""
        end = x + along[0] * _TICK, y + along[1] * _TICK
        draw.line((x, y, *end), fill="black", width=3)
        place = end[0] + along[0] * _TICK, end[1] + along[1] * _TICK
        draw.text(place, label, fill="black", font=font, anchor=anchor)

    def upright(text: str, x: float) -> None:
        """Text from bottom to top, centred beside the plot."""
        label = Image.new("L", (round(font.getlength(text)) + 2, 2 * _LETTERS))
        ImageDraw.Draw(label).text((0, _LETTERS), text, fill=255, font=font, anchor="lm")
        turned = label.rotate(90, expand=True)
        place = round(x - turned.width / 2), round(_TOP + (height - turned.height) / 2)
        figure.paste("black", place, turned)

    seconds = np.size(wave) / sample_rate
    for time, label in _ticks(seconds):
        mark(_LEFT + time / seconds * width, bottom, (0, 1), label, "mt")
    draw.text(
        (_LEFT + width / 2, bottom + _BOTTOM - 10), "Time (s)", fill="black", font=font, anchor="ms"
    )
    bands = len(edges) - 2
    for frequency in (each for each in _FREQUENCIES if each < edges[-2]):
        # The centre of band i, edges[i + 1], is in the middle of row i.
        row = float(np.interp(frequency, edges, np.arange(bands + 2))) - 0.5
        mark(_LEFT, bottom - row / bands * height, (-1, 0), f"{frequency / 1000:g}", "rm")
    upright("Frequency (kHz)", _LETTERS)

    bar = right + _GAP
    scale = np.repeat(np.linspace(0, 1, height)[:, None], _BAR, axis=1)
    figure.paste(spectrogram_image(scale, size=(_BAR, height)), (bar, _TOP))
    for level in range(0, _SHOWN_DB + 1, 20):
        label = f"-{level}" if level else "0"
        mark(bar + _BAR, _TOP + level / _SHOWN_DB * (height - 1), (1, 0), label, "lm")
    upright("Level (dB)", right + _RIGHT - _LETTERS)

    draw.rectangle((_LEFT, _TOP, right, bottom), outline="black", width=2)
    draw.rectangle((bar, _TOP, bar + _BAR, bottom), outline="black", width=2)
    short = _shortened(" ".join(title.split()), lambda text: font.getlength(text) <= width)
    draw.text((_LEFT + width / 2, _TOP - 20), short, fill="black", font=font, anchor="ms")
    figure.info["dpi"] = (_DPI, _DPI)
    return figure


def _full_band(
    wave: NDArray[np.float32], sample_rate: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Magnitudes [n_mels, L] of a wave up to half its sample rate, and the bands' edges in Hz."""
    import torch

    from diffsound.audio.mel import MelConfig, MelFrontEnd, band_edges

    if wave.ndim != 1 or not wave.size:
        raise InputError(f"a wave to draw is [samples > 0], not {list(wave.shape)}")
    config = MelConfig.full_band(sample_rate=sample_rate, n_fft=2048, n_mels=128)
    padded = np.pad(wave, (0, max(0, config.n_fft - len(wave))))
    front_end = MelFrontEnd(config)
    magnitudes = front_end.basis @ front_end.magnitudes(torch.from_numpy(padded)[None])[0]
    return magnitudes[:, : config.frames_for(len(wave))].numpy(), band_edges(config).numpy()


def _shortened(text: str, fits: Callable[[str], bool]) -> str:
    """The text, or as much of its beginning as fits."""
    if fits(text):
        return text
    while text and not fits(f"{text}..."):
        text = text[:-1]
    return f"{text.rstrip()}..."


def _colour(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Values in [0, 1] (others are clipped) [H, W] to RGB [H, W, 3]."""
    clipped = np.clip(np.nan_to_num(values), 0, 1)
    stops = np.linspace(0, 1, len(_COLOURS))
    channels = [np.interp(clipped, stops, _COLOURS[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def _ticks(seconds: float) -> list[tuple[float, str]]:
    """Times of round steps (1, 2 or 5 times a power of ten) and their labels."""
    smallest = seconds / _MAX_TICKS
    power = 10.0 ** math.floor(math.log10(smallest))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= smallest)
    count = math.floor(seconds / step + 1e-9)
    return [(i * step, f"{round(i * step, 6):g}") for i in range(count + 1)]


def envelope(wave: NDArray[np.float32], points: int) -> NDArray[np.float32]:
    """Lowest and highest sample of `points` equal stretches of a wave [samples]: [points, 2]."""
    edges = np.linspace(0, len(wave), points + 1)
    starts = np.minimum(edges[:-1].astype(int), len(wave) - 1)
    # A stretch shorter than a sample still shows the sample it lies in.
    stops = np.maximum(edges[1:].astype(int), starts + 1)
    stretches = [wave[start:stop] for start, stop in zip(starts, stops, strict=True)]
    return np.array([(part.min(), part.max()) for part in stretches], dtype=np.float32)
