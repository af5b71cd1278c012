"""Sounds and pictures inside a page, so that one file is all there is to send."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

import numpy as np
import torch

from diffsound.audio.io import encode_audio
from diffsound.audio.mel import MelConfig, MelFrontEnd

if TYPE_CHECKING:
    from PIL.Image import Image


def audio_url(wave: np.ndarray, sample_rate: int, *, loudness: float | None = None) -> str:
    """A wave [samples] as a data URL; MP3, which every browser plays."""
    return _url(encode_audio(wave, sample_rate, "mp3", loudness=loudness), "audio/mpeg")


def picture_url(picture: Image) -> str:
    """A picture as a data URL."""
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return _url(buffer.getvalue(), "image/png")


def mel_of(wave: np.ndarray, config: MelConfig) -> np.ndarray:
    """A wave [samples] at the mel's rate to its mel [n_mels, L]."""
    with torch.inference_mode():
        return np.asarray(MelFrontEnd(config)(torch.from_numpy(wave)[None])[0].numpy())


def _url(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
