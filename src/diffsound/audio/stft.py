"""Short-time Fourier transform with centred frames: frame i is centred on sample i * hop."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Padding = Literal["reflect", "constant"]


def reflect_pad(signal: Tensor, amount: int) -> Tensor:
    """Mirror both ends of [..., n] about their outermost samples: [..., n + 2 * amount].

    Unlike torch's version this takes any n >= 1, bouncing back and forth when `amount` reaches past
    the other end (as numpy's "reflect" does), so that the shortest clips need no special case.
    """
    length = signal.shape[-1]
    if amount < length:
        shape = signal.shape
        padded = functional.pad(signal.reshape(1, -1, length), (amount, amount), mode="reflect")
        return padded.reshape(*shape[:-1], length + 2 * amount)
    period = max(2 * (length - 1), 1)
    index = torch.arange(-amount, length + amount, device=signal.device).remainder(period)
    return signal[..., torch.minimum(index, period - index) if length > 1 else index]


def stft(wave: Tensor, window: Tensor, hop_length: int, padding: Padding = "reflect") -> Tensor:
    """Wave [B, samples] to complex spectrum [B, n_fft // 2 + 1, 1 + samples // hop_length]."""
    n_fft = window.shape[0]
    half = n_fft // 2
    padded = reflect_pad(wave, half) if padding == "reflect" else functional.pad(wave, (half, half))
    return torch.stft(padded, n_fft, hop_length, window=window, center=False, return_complex=True)


def istft(
    spectrum: Tensor, window: Tensor, hop_length: int, length: int, envelope: Tensor | None = None
) -> Tensor:
    """Complex spectrum [B, n_fft // 2 + 1, L] to wave [B, length], the least-squares inverse.

    With hop_length <= n_fft / 4 the frames cover every sample up to length = L * hop_length.
    hop_length must divide n_fft. (torch.istft gives the same in twice the time.) envelope: the
    result of `window_envelope` for L frames, to compute it once for many calls.
    """
    n_fft = window.shape[0]
    frames = torch.fft.irfft(spectrum.transpose(1, 2), n=n_fft) * window  # [B, L, n_fft]
    if envelope is None:
        envelope = window_envelope(window, hop_length, frames.shape[1])
    kept = slice(n_fft // 2, n_fft // 2 + length)
    return overlap_add(frames, hop_length)[:, kept] / envelope[:, kept]


def window_envelope(window: Tensor, hop_length: int, frames: int) -> Tensor:
    """The sum of the squared windows of `frames` frames: [1, n_fft + (frames - 1) * hop_length]."""
    return overlap_add(window.square().expand(1, frames, -1), hop_length)


def overlap_add(frames: Tensor, hop_length: int) -> Tensor:
    """Frames [B, L, n], each hop_length after the one before, to their sum [B, n + (L-1) * hop]."""
    batch, count, size = frames.shape
    parts = frames.reshape(batch, count, size // hop_length, hop_length)
    total = frames.new_zeros(batch, count + parts.shape[2] - 1, hop_length)
    for place, part in enumerate(parts.unbind(2)):
        total[:, place : place + count] += part
    return total.flatten(1)
