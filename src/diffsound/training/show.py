"""Pictures and sounds that show how far a stage is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from diffsound.audio.io import write_audio
from diffsound.audio.spectrogram import spectrogram_image
from diffsound.files import atomic_write


def mel_pair(path: Path, original: Tensor, made: Tensor) -> None:
    """A PNG with the original mel [n_mels, L] over the one made of it."""
    from PIL import Image

    pictures = [spectrogram_image(mel.float().cpu().numpy()) for mel in (original, made)]
    width, height = pictures[0].size
    gap = 4
    sheet = Image.new("RGB", (width, 2 * height + gap), "white")
    for row, picture in enumerate(pictures):
        sheet.paste(picture, (0, row * (height + gap)))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        sheet.save(temporary)


def sound(path: Path, wave: Tensor, sample_rate: int) -> None:
    """A WAV of wave [samples]; one that is not finite is written as silence."""
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = np.nan_to_num(wave.float().cpu().numpy(), nan=0.0, posinf=0.0, neginf=0.0)
    write_audio(path, samples, sample_rate, overwrite=True)
