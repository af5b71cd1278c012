"""Pictures: of finished sounds, and of sounds that are still noise."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from diffsound.audio.spectrogram import spectrogram_image

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


def unfinished_mel(pipeline: TextToSound, tokens: Tensor) -> NDArray[np.float32]:
    """The mel [n_mels, L] of tokens some of which are still the mask.

    A masked cell is filled from its neighbours in time, and the mel is as bright as the share of
    its cells that is drawn: the sound rises out of the dark.
    """
    import torch

    codec = pipeline.bundle.codec
    drawn = tokens < codec.codebook_size
    filled = _fill(tokens.cpu().numpy(), drawn.cpu().numpy())
    with torch.inference_mode():
        mel = codec.decode(torch.from_numpy(filled)[None].to(pipeline.device))[0].clamp(0, 1).cpu()
    share = drawn.float().cpu()
    if codec.config.rows_are_bands:
        share = share.repeat_interleave(mel.shape[0] // codec.rows, dim=0)
    else:
        share = share.mean(0, keepdim=True)
    return (mel * share.repeat_interleave(codec.time_stride, dim=1)).numpy()


def _fill(tokens: NDArray[Any], drawn: NDArray[np.bool_]) -> NDArray[Any]:
    """Each cell that is not drawn takes the last drawn one before it, else the first after it."""
    columns = np.arange(tokens.shape[1])
    before = np.maximum.accumulate(np.where(drawn, columns, -1), axis=1)
    first = np.where(drawn.any(1), drawn.argmax(1), 0)[:, None]
    source = np.where(before >= 0, before, first)
    filled = np.take_along_axis(tokens, source, axis=1)
    return np.where(drawn.any(1, keepdims=True), filled, 0)
