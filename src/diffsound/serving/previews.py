"""Pictures: of finished sounds, and of sounds that are still noise."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from diffsound.audio.spectrogram import spectrogram_image
from diffsound.unfinished import unfinished_mel

if TYPE_CHECKING:
    from torch import Tensor

    from diffsound.pipeline import TextToSound

# Small, and JPEG: noise makes PNG files of a megabit, and there are many previews a second.
PREVIEW_SIZE = (240, 64)
PREVIEW_QUALITY = 70


def spectrogram_bytes(mel: NDArray[np.float32]) -> bytes:
    """A mel [n_mels, L] as a PNG file."""
    buffer = io.BytesIO()
    spectrogram_image(mel).save(buffer, format="PNG")
    return buffer.getvalue()


def preview_url(pipeline: TextToSound, tokens: Tensor) -> str:
    """Unfinished tokens [F', L'] as a small picture, in a data URL."""
    buffer = io.BytesIO()
    picture = spectrogram_image(unfinished_mel(pipeline, tokens), size=PREVIEW_SIZE)
    picture.save(buffer, format="JPEG", quality=PREVIEW_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
