"""Edits of tokens: inpaint a region, extend a clip, vary it.

Each edit says which cells of the grid are kept and how the new wave is joined to the original
one. Outside the edited region the result is the original recording, sample for sample, except for
a short cross-fade at the seams.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffsound.audio.mel import band_edges
from diffsound.decoder.sampling import Known
from diffsound.errors import InputError
from diffsound.generation.sound import Sound
from diffsound.model.bundle import Bundle

MIN_SECONDS, MAX_SECONDS = 0.5, 30.0
SEAM_SECONDS = 0.02

# A clip to edit: a Sound, an audio file, or a mono wave [samples] at the bundle's sample rate.
Clip = Sound | str | Path | np.ndarray


@dataclass(frozen=True)
class Edit:
    """An edit ready to run.

    tokens, keep: [F', L'], the clip's tokens and the cells that stay.
    samples: length of the result. gain: from the level of the tokens to the clip's.
    join: [samples] new wave at that level -> [samples] result.
    record: the edit's own settings, for the sound's metadata.
    """

    tokens: Tensor
    keep: Tensor
    samples: int
    gain: float
    join: Callable[[Tensor], Tensor]
    record: Mapping[str, Any]
    start_step: int | None = None

    def known(self, batch: int) -> Known:
        """The known tokens, repeated for every item of a batch."""
        return Known(
            self.tokens.expand(batch, -1, -1), self.keep.expand(batch, -1, -1), self.start_step
        )


def inpaint(
    bundle: Bundle,
    source: Clip,
    start: float,
    end: float,
    low: float | None = None,
    high: float | None = None,
) -> Edit:
    """Regenerate the seconds from `start` to `end`, optionally only between `low` and `high` Hz."""
    wave, tokens, gain = _open(bundle, source)
    rate = bundle.sample_rate
    first, last = _region(start, end, len(wave), rate)
    bottom, top = _band(low, high, rate)
    column = bundle.column_samples
    keep = torch.ones_like(tokens, dtype=torch.bool)
    rows = _rows_in_band(bundle, bottom, top)
    keep[rows, first // column : math.ceil(last / column)] = False

    def join(new: Tensor) -> Tensor:
        if (low, high) != (None, None):
            new = _replace_band(wave, new, rate, bottom, top)
        return _splice(wave, new, first, last, rate)

    record = {"edit": "inpaint", "start": start, "end": end, "low": low, "high": high}
    return Edit(tokens, keep, len(wave), gain, join, _without_none(record))


def extend(bundle: Bundle, source: Clip, seconds: float) -> Edit:
    """Continue the clip for `seconds`."""
    wave, tokens, gain = _open(bundle, source)
    rate = bundle.sample_rate
    if not _is_number(seconds) or seconds <= 0:
        raise InputError(f"seconds must be a number above 0, not {seconds!r}")
    samples = len(wave) + round(seconds * rate)
    if samples > MAX_SECONDS * rate:
        raise InputError(
            f"the extended clip would last {samples / rate:.1f} s; the limit is {MAX_SECONDS:.0f} s"
        )
    # The tokens of a partly filled last column include the end of the clip: regenerate it.
    full = len(wave) // bundle.column_samples
    missing = bundle.columns(samples) - tokens.shape[1]
    tokens = torch.nn.functional.pad(tokens, (0, missing))
    keep = torch.zeros_like(tokens, dtype=torch.bool)
    keep[:, :full] = True
    original = torch.nn.functional.pad(wave, (0, samples - len(wave)))
    seam = max(0, len(wave) - round(SEAM_SECONDS * rate))

    def join(new: Tensor) -> Tensor:
        return _splice(original, new, seam, samples, rate)

    return Edit(tokens, keep, samples, gain, join, {"edit": "extend", "seconds": seconds})


def vary(bundle: Bundle, source: Clip, strength: float) -> Edit:
    """Re-noise the whole clip to step strength·T; near 0 it stays close, at 1 it is new."""
    wave, tokens, gain = _open(bundle, source)
    if not _is_number(strength) or not 0 < strength <= 1:
        raise InputError(f"strength must be above 0 and at most 1, not {strength!r}")
    steps = getattr(bundle.config.decoder.model, "timesteps", None)
    if steps is None:
        raise InputError("this bundle's decoder is autoregressive and cannot vary a clip")
    return Edit(
        tokens,
        keep=torch.zeros_like(tokens, dtype=torch.bool),
        samples=len(wave),
        gain=gain,
        join=lambda new: new,
        record={"edit": "vary", "strength": strength},
        start_step=max(1, round(strength * steps)),
    )


def _open(bundle: Bundle, source: Clip) -> tuple[Tensor, Tensor, float]:
    """The clip's wave [samples], its tokens [F', L'], and the gain from these to the wave."""
    rate = bundle.sample_rate
    if isinstance(source, Sound):
        wave = torch.as_tensor(source.wave)
    elif isinstance(source, np.ndarray):
        wave = torch.as_tensor(source, dtype=torch.float32)
    else:
        from diffsound.audio.io import AUDIO_FORMATS, read_audio

        wave = torch.from_numpy(read_audio(source, rate, formats=AUDIO_FORMATS))
    if wave.ndim != 1 or not torch.isfinite(wave).all():
        raise InputError("a clip to edit must be a mono wave of finite numbers")
    if not MIN_SECONDS * rate <= len(wave) <= MAX_SECONDS * rate:
        raise InputError(
            f"a clip to edit must last {MIN_SECONDS} to {MAX_SECONDS:.0f} s, "
            f"not {len(wave) / rate:.2f} s"
        )
    if (
        isinstance(source, Sound)
        and source.settings.get("bundle") == bundle.config.name
        and not source.settings.get("loop")  # its wave is cut to length somewhere in the middle
        and source.tokens.shape == (bundle.codec.rows, bundle.columns(len(wave)))
    ):
        return wave, torch.as_tensor(source.tokens, dtype=torch.long), source.gain
    return wave, bundle.tokenize(wave).cpu(), 1.0


def _region(start: float, end: float, samples: int, rate: int) -> tuple[int, int]:
    if not (_is_number(start) and _is_number(end)):
        raise InputError(f"a region must be given in seconds, not {start!r} to {end!r}")
    if not 0 <= start < end <= samples / rate + 1e-6:
        raise InputError(
            f"the region {start} to {end} s does not lie inside the clip, "
            f"which lasts {samples / rate:.2f} s"
        )
    first, last = round(start * rate), min(round(end * rate), samples)
    if last - first < 2 * round(SEAM_SECONDS * rate):
        raise InputError(f"a region must last at least {2 * SEAM_SECONDS} s")
    return first, last


def _band(low: float | None, high: float | None, rate: int) -> tuple[float, float]:
    bottom, top = 0.0 if low is None else low, rate / 2 if high is None else high
    if not (_is_number(bottom) and _is_number(top) and 0 <= bottom < top <= rate / 2):
        raise InputError(
            f"a band must lie between 0 and {rate / 2:.0f} Hz, low before high; not {low} to {high}"
        )
    return bottom, top


def _rows_in_band(bundle: Bundle, bottom: float, top: float) -> Tensor:
    """Rows of the grid that hold these frequencies; all of them when rows are not bands."""
    codec = bundle.codec
    if not codec.config.rows_are_bands:
        return torch.arange(codec.rows)
    centres = band_edges(bundle.config.codec.mel)[1:-1].reshape(codec.rows, -1)
    touched = (centres.amax(1) >= bottom) & (centres.amin(1) <= top)
    return touched.nonzero().flatten()


def _splice(original: Tensor, new: Tensor, first: int, last: int, rate: int) -> Tensor:
    """`new` between the samples `first` and `last`, `original` elsewhere, faded inside the region.

    A region that touches an end of the clip needs no fade there.
    """
    fade = min(round(SEAM_SECONDS * rate), (last - first) // 2)
    weight = torch.zeros(len(original))
    weight[first:last] = 1.0
    ramp = torch.linspace(0.0, 1.0, fade)
    if first > 0:
        weight[first : first + fade] = ramp
    if last < len(original):
        weight[last - fade : last] = ramp.flip(0)
    new = new.cpu()
    return torch.where(weight == 0, original, original * (1 - weight) + new * weight)


def _replace_band(original: Tensor, new: Tensor, rate: int, bottom: float, top: float) -> Tensor:
    """`new` between two frequencies, `original` elsewhere, with soft edges of about 50 Hz."""
    n_fft = 2048
    window = torch.hann_window(n_fft)
    spectra = torch.stft(
        torch.stack([original, new.cpu()]), n_fft, window=window, return_complex=True
    )
    frequencies = torch.linspace(0, rate / 2, n_fft // 2 + 1)
    inside = torch.sigmoid((frequencies - bottom) / 12) * torch.sigmoid((top - frequencies) / 12)
    if bottom == 0:
        inside[frequencies < top / 2] = 1.0
    mixed = spectra[0] * (1 - inside[:, None]) + spectra[1] * inside[:, None]
    return torch.istft(mixed, n_fft, window=window, length=len(original))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _without_none(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if value is not None}
