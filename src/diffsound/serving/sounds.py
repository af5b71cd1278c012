"""Sounds: kept for a while, described as JSON, encoded as files, drawn, read from uploads."""

from __future__ import annotations

import base64
import io
import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from numpy.typing import NDArray

from diffsound.audio.io import AUDIO_FORMATS, read_audio
from diffsound.audio.spectrogram import envelope, spectrogram_image
from diffsound.errors import AudioError, InputError
from diffsound.generation.edits import MAX_SECONDS, MIN_SECONDS
from diffsound.generation.jobs import unfinished_mel
from diffsound.generation.settings import GivenOutput
from diffsound.generation.sound import Sound
from diffsound.serving.schemas import AudioFormat, SoundAnswer
from diffsound.serving.settings import MEBIBYTE

if TYPE_CHECKING:
    from torch import Tensor

    from diffsound.generation.pipeline import TextToSound

WAVEFORM_POINTS = 400
# What an upload may decode to, over all its channels: 30 s of 5.1 sound at 192 kHz are 138 MB.
DECODED_BYTES = 256 * MEBIBYTE
# Small, and JPEG: noise makes PNG files of a megabit, and there are many previews a second.
PREVIEW_SIZE = (240, 64)
PREVIEW_QUALITY = 70


class SoundStore:
    """Sounds by unguessable id; the oldest are dropped when they expire or space runs out."""

    def __init__(self, max_bytes: int, max_seconds: float) -> None:
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._sounds: OrderedDict[str, tuple[float, Sound]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._sounds)

    @property
    def bytes(self) -> int:
        """The size of all sounds that are kept."""
        return self._bytes

    def add(self, sound: Sound) -> str:
        """Keep a sound; returns its id."""
        name = secrets.token_urlsafe(12)
        own = _own(sound)
        with self._lock:
            self._sounds[name] = (time.monotonic(), own)
            self._bytes += _size(own)
        self.sweep()
        return name

    def get(self, name: str) -> Sound | None:
        """A sound by id, unless it has expired."""
        self.sweep()
        with self._lock:
            entry = self._sounds.get(name)
            return None if entry is None else entry[1]

    def sweep(self) -> None:
        """Drop sounds that are too old or too large in total."""
        with self._lock:
            oldest = time.monotonic() - self._max_seconds
            while self._sounds:
                name, (born, sound) = next(iter(self._sounds.items()))
                if self._bytes <= self._max_bytes and born >= oldest:
                    return
                del self._sounds[name]
                self._bytes -= _size(sound)


def describe(
    sound: Sound,
    name: str | None = None,
    *,
    format: AudioFormat | None = None,
    output: GivenOutput | None = None,
) -> SoundAnswer:
    """A sound as JSON: with links if it is kept under a name, with its bytes if a format is given.

    The answer's settings are all that, with prompt and seed, makes the sound again.
    """
    url = None if name is None else f"/v1/sounds/{name}"
    audio = None if format is None else sound.encode(format, **(output or {}))
    return SoundAnswer(
        id=name,
        url=url,
        spectrogram_url=None if url is None else f"{url}/spectrogram.png",
        prompt=sound.prompt,
        seed=sound.seed,
        seconds=round(sound.duration, 4),
        sample_rate=sound.sample_rate,
        settings=dict(sound.settings),
        waveform=envelope(sound.wave, WAVEFORM_POINTS).astype(float).round(3).tolist(),
        score=sound.score,
        coverage=None if sound.coverage is None else dict(sound.coverage),
        layers=[
            layer.metadata | ({} if url is None else {"url": f"{url}/layers/{number}"})
            for number, layer in enumerate(sound.layers, 1)
        ],
        format=format,
        audio=None if audio is None else base64.b64encode(audio).decode("ascii"),
    )


def read_upload(stream: BinaryIO, pipeline: TextToSound) -> Sound:
    """An uploaded file, whatever its bytes, as a clip to edit; a bad one is an AudioError.

    Decoded block by block from where it is; no more than a clip's length is ever held.
    """
    import torch

    wave = read_audio(
        stream,
        pipeline.sample_rate,
        name="the upload",
        max_seconds=MAX_SECONDS + 0.5,
        max_bytes=DECODED_BYTES,
        formats=AUDIO_FORMATS,
    )
    wave = wave[: round(MAX_SECONDS * pipeline.sample_rate)]
    if len(wave) < MIN_SECONDS * pipeline.sample_rate:
        seconds = len(wave) / pipeline.sample_rate
        raise InputError(f"a clip to edit lasts at least {MIN_SECONDS} s, this one {seconds:.2f} s")
    peak = float(np.abs(wave).max())
    if peak > 1e6:
        raise AudioError("cannot use the upload: its samples are far above full scale")
    with torch.inference_mode():
        mel = pipeline.bundle.mel_front_end(torch.from_numpy(wave)[None])[0]
    return Sound(
        wave=wave,
        sample_rate=pipeline.sample_rate,
        mel=mel.numpy(),
        tokens=np.zeros((0, 0), np.int64),  # made when the clip is edited
        prompt="",
        seed=0,
    )


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


def _own(sound: Sound) -> Sound:
    """The sound with arrays of its own: a view would keep the whole batch it was made in."""
    layers = tuple(replace(layer, wave=layer.wave.copy()) for layer in sound.layers)
    arrays = {name: getattr(sound, name).copy() for name in ("wave", "mel", "tokens")}
    return replace(sound, layers=layers, **arrays)


def _size(sound: Sound) -> int:
    arrays = sound.wave, sound.mel, sound.tokens, *(layer.wave for layer in sound.layers)
    return sum(array.nbytes for array in arrays)
