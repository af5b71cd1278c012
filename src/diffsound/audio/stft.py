"""Short-time Fourier transform with centred frames: frame i is centred on sample i * hop."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Padding = Literal["reflect", "constant"]


def reflect_pad(signal: Tensor, amount: int) -> Tensor:
    """Mirror both ends of [..., n] about their outermost samples: [..., n + 2 * amount].

    Unlike torch's own this takes any n >= 1, bouncing to and fro when `amount` reaches past the
    other end (as numpy's "reflect" does), so that the shortest clips need no special case.
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


def istft(spectrum: Tensor, window: Tensor, hop_length: int, length: int) -> Tensor:
    """Complex spectrum [B, n_fft // 2 + 1, L] to wave [B, length], the least-squares inverse.

    With hop_length <= n_fft / 4 the frames cover every sample up to length = L * hop_length.
    """
    return torch.istft(
        spectrum, window.shape[0], hop_length, window=window, center=True, length=length
    )
