"""Previews of sounds that are still being drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from diffsound.generation.pipeline import TextToSound


def unfinished_mel(pipeline: TextToSound, tokens: Tensor) -> NDArray[np.float32]:
    """The mel [n_mels, L] of tokens [F', L'] some of which are still the mask.

    A masked cell is filled from its neighbours in time, and the mel is as bright as the share of
    cells already drawn.
    """
    codec = pipeline.bundle.codec
    drawn = tokens < codec.codebook_size
    filled = _fill(tokens.cpu().numpy(), drawn.cpu().numpy())
    with torch.inference_mode():
        mel = codec.mean(torch.from_numpy(filled)[None].to(pipeline.device))[0].clamp(0, 1).cpu()
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
