"""Finished sounds: kept for a while, described as JSON, encoded as files, read from uploads."""

from __future__ import annotations

import base64
import io
import json
import secrets
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from diffsound.audio.envelope import envelope
from diffsound.audio.io import encode_audio, read_audio
from diffsound.editing import MAX_SECONDS, MIN_SECONDS
from diffsound.errors import AudioError, InputError
from diffsound.serving.schemas import AudioFormat, SoundAnswer
from diffsound.sound import Sound

if TYPE_CHECKING:
    from diffsound.pipeline import TextToSound

WAVEFORM_POINTS = 400


class SoundStore:
    """Sounds by unguessable id; the oldest go when there are too many bytes or they are too old."""

    def __init__(self, max_bytes: int, max_seconds: float) -> None:
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._sounds: OrderedDict[str, tuple[float, Sound]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._sounds)

    def add(self, sound: Sound) -> str:
        """Keep a sound; returns its id."""
        name = secrets.token_urlsafe(12)
        with self._lock:
            self._sounds[name] = (time.monotonic(), sound)
            self._bytes += _size(sound)
            self._forget_old()
        return name

    def get(self, name: str) -> Sound | None:
        """A sound by id, unless it is gone."""
        with self._lock:
            self._forget_old()
            entry = self._sounds.get(name)
            return None if entry is None else entry[1]

    def _forget_old(self) -> None:
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
    loudness: float | None = None,
) -> SoundAnswer:
    """A sound as JSON: with links if it is kept under a name, with its bytes if a format is given.

    The answer's settings are all that, with prompt and seed, makes the sound again.
    """
    url = None if name is None else f"/v1/sounds/{name}"
    audio = None if format is None else encode(sound, format, loudness)
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


def encode(sound: Sound, format: AudioFormat, loudness: float | None = None) -> bytes:
    """The sound as an audio file that carries its recipe."""
    recipe = {"diffsound": json.dumps(sound.metadata, ensure_ascii=False)}
    return encode_audio(sound.wave, sound.sample_rate, format, loudness=loudness, metadata=recipe)


def encode_layer(sound: Sound, number: int, format: AudioFormat) -> bytes:
    """Layer `number` (from 1) of a scene as an audio file, at its level in the scene."""
    layer = sound.layers[number - 1]
    note = {"diffsound": json.dumps(layer.metadata, ensure_ascii=False)}
    return encode_audio(layer.wave, sound.sample_rate, format, metadata=note)


def read_upload(data: bytes, pipeline: TextToSound) -> Sound:
    """Uploaded bytes, whatever they are, as a clip to edit; bad ones are an AudioError."""
    import torch

    stream = io.BytesIO(data)
    stream.name = "the upload"  # what error messages call it
    wave = read_audio(stream, pipeline.sample_rate, max_seconds=MAX_SECONDS + 0.5)
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
        tokens=np.zeros((0, 0), np.int64),  # of another recording: they are made when it is edited
        prompt="",
        seed=0,
    )


def _size(sound: Sound) -> int:
    layers = sum(layer.wave.nbytes for layer in sound.layers)
    return sound.wave.nbytes + sound.mel.nbytes + sound.tokens.nbytes + layers
