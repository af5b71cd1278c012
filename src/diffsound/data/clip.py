"""One clip through preparation: read, cut, trim, level, fit, encode (section V-C of the paper)."""

from __future__ import annotations

import functools
import io
import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from diffsound.audio.io import read_audio
from diffsound.audio.mel import MelConfig, MelFrontEnd
from diffsound.audio.mixing import keep_peak, to_loudness, trim_silence
from diffsound.config import Config
from diffsound.data.captions import captions_for
from diffsound.data.duplicates import sound_fingerprint
from diffsound.data.record import AudioLocation, Record
from diffsound.data.shards import json_bytes, read_span
from diffsound.errors import DataError


class PrepareSettings(Config):
    """Everything that determines the bytes of a prepared folder.

    None switches trimming, levelling and the choice of licences off.
    """

    mel: MelConfig = MelConfig()  # its sample rate is the clips' rate
    max_seconds: float = Field(default=10.0, gt=0, le=600)
    min_seconds: float = Field(default=0.05, ge=0.025)  # shorter clips are rejected
    long: Literal["crop", "split"] = "crop"  # what is done to clips longer than max_seconds
    fit: Literal["none", "pad", "loop"] = "none"  # and to shorter ones: "none" keeps the length
    trim_db: float | None = Field(default=None, gt=0)  # cuts ends this far below the clip's peak
    loudness: float | None = Field(default=None, ge=-70, le=0)  # LUFS every clip is brought to
    silent_db: float = Field(default=-70.0, lt=0)  # dBFS; clips with a lower peak are rejected
    store_mel: bool = False  # keep float16 mels in the shards, else they are computed when needed
    paraphrases: bool = True  # add captions made from the clip's class, title and tags to its own
    licences: tuple[str, ...] | None = None  # clips under any other licence are left out
    clips_per_shard: int = Field(default=256, gt=0)


@dataclass(frozen=True)
class PreparedClip:
    """A clip as stored in a shard: 16-bit samples, its record, and what was done to it."""

    record: Record
    samples: np.ndarray  # int16 [samples]
    preparation: dict[str, Any]

    def files(self, settings: PrepareSettings) -> tuple[dict[str, bytes], np.ndarray]:
        """The clip's shard members by suffix, and its fingerprint for finding near-duplicates."""
        # From the 16-bit samples, so that a stored mel equals one computed from the shard.
        wave = torch.from_numpy(self.samples.astype(np.float32) / 32768)
        with torch.inference_mode():
            mel = _front_end(settings.mel)(wave[None])[0].numpy()
        members = {
            "flac": encode_flac(self.samples, settings.mel.sample_rate),
            "json": json_bytes({**self.record.to_json(), "preparation": self.preparation}),
        }
        if settings.store_mel:
            members["mel.npy"] = array_bytes(mel.astype(np.float16))
        return members, sound_fingerprint(mel)


def prepare_clip(record: Record, settings: PrepareSettings) -> list[PreparedClip]:
    """Read and prepare one record; a long one may be split into several clips.

    Raises AudioError or DataError with the reason if the clip is not usable.
    """
    rate = settings.mel.sample_rate
    wave = _cut(read_location(record.audio, rate), record.audio, rate)
    read_seconds = len(wave) / rate
    peak = float(np.abs(wave).max(initial=0.0))
    if peak <= 10 ** (settings.silent_db / 20):
        raise DataError("silent")
    done: dict[str, Any] = {"read_seconds": round(read_seconds, 3)}
    if settings.paraphrases:
        done["own_captions"] = list(record.captions)
        record = replace(record, captions=captions_for(record, asked=True))
    if settings.trim_db is not None:
        wave, begin = trim_silence(wave, rate, settings.trim_db)
        done["trimmed_start"] = round(begin / rate, 3)
        done["trimmed_end"] = round(read_seconds - (begin + len(wave)) / rate, 3)
    if len(wave) < settings.min_seconds * rate:
        raise DataError(f"too short: {len(wave) / rate:.3f} s")
    parts = _parts(wave, settings)
    if len(parts) == 1 and len(parts[0]) < len(wave):
        done["cropped_from"] = round(len(wave) / rate, 3)
    clips = []
    for number, part in enumerate(parts):
        own = dict(done) if len(parts) == 1 else {**done, "part": number, "parts": len(parts)}
        try:
            samples = _level_and_fit(part, settings, own)
        except DataError:
            if len(parts) == 1:
                raise
            continue  # a silent stretch of a long recording
        name = record.id if len(parts) == 1 else f"{record.id}-{number:03d}"
        part_record = replace(record, id=name, seconds=round(len(samples) / rate, 4))
        clips.append(PreparedClip(part_record, samples, own))
    if not clips:
        raise DataError("silent")
    return clips


def read_location(location: AudioLocation, sample_rate: int) -> np.ndarray:
    """The audio at a location, float32 [samples] mono, whole (see `AudioLocation` for parts)."""
    if location.span is not None:
        return read_audio(io.BytesIO(read_span(location.path, location.span)), sample_rate)
    return read_audio(location.path, sample_rate)


def loop_to(wave: np.ndarray, samples: int, rate: int) -> np.ndarray:
    """Repeat a wave up to a length, with 10 ms cross-fades so that the seams do not click."""
    if len(wave) >= samples:
        return wave[:samples]
    fade = min(rate // 100, len(wave) // 4)
    step = len(wave) - fade
    # At half steps a ramp and its mirror image add up to one, even a ramp of a single sample.
    ramp = np.sin((np.arange(fade, dtype=np.float32) + 0.5) / max(fade, 1) * (math.pi / 2)) ** 2
    body = wave.copy()
    body[:fade] *= ramp
    body[step:] *= ramp[::-1]
    looped = np.zeros(samples + len(wave), dtype=np.float32)
    for begin in range(0, samples, step):
        looped[begin : begin + len(wave)] += body
    looped[:fade] = wave[:fade]  # the beginning has nothing to fade from
    return looped[:samples]


def encode_flac(samples: np.ndarray, sample_rate: int) -> bytes:
    """16-bit mono FLAC of int16 samples."""
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, samples, sample_rate, format="FLAC", subtype="PCM_16")
    return buffer.getvalue()


def to_int16(wave: np.ndarray) -> np.ndarray:
    """16-bit samples of a wave in [-1, 1]."""
    return np.clip(np.rint(wave * 32768.0), -32768, 32767).astype(np.int16)


def array_bytes(array: np.ndarray) -> bytes:
    """The array as a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _cut(wave: np.ndarray, location: AudioLocation, rate: int) -> np.ndarray:
    if location.start is None or location.end is None:
        return wave
    # Tolerance: files that are already cut are often a little longer than their segment.
    if len(wave) <= (location.end - location.start + 0.5) * rate:
        return wave
    part = wave[round(location.start * rate) : round(location.end * rate)]
    if len(part) == 0:
        raise DataError(
            f"its segment starts at {location.start} s, the file ends at {len(wave) / rate:.1f} s"
        )
    return part


def _parts(wave: np.ndarray, settings: PrepareSettings) -> list[np.ndarray]:
    size = round(settings.max_seconds * settings.mel.sample_rate)
    if len(wave) <= size:
        return [wave]
    if settings.long == "crop":
        return [wave[:size]]
    shortest = settings.min_seconds * settings.mel.sample_rate
    parts = [wave[begin : begin + size] for begin in range(0, len(wave), size)]
    return [part for part in parts if len(part) >= shortest]


def _level_and_fit(wave: np.ndarray, settings: PrepareSettings, done: dict[str, Any]) -> np.ndarray:
    rate = settings.mel.sample_rate
    peak = float(np.abs(wave).max())
    if peak <= 10 ** (settings.silent_db / 20):
        raise DataError("silent")
    if settings.loudness is not None:
        wave = to_loudness(wave, rate, settings.loudness)
    else:
        wave = keep_peak(wave, 1.0)  # lossy files may decode beyond full scale
    gain = float(np.abs(wave).max()) / peak
    if abs(gain - 1) > 1e-4:
        done["gain_db"] = round(20 * math.log10(gain), 2)
    size = round(settings.max_seconds * rate)
    if settings.fit == "loop" and len(wave) < size:
        done["looped_from"] = round(len(wave) / rate, 3)
        wave = loop_to(wave, size, rate)
    elif settings.fit == "pad" and len(wave) < size:
        done["padded_from"] = round(len(wave) / rate, 3)
        wave = np.pad(wave, (0, size - len(wave)))
    return to_int16(wave)


_front_end = functools.lru_cache(maxsize=2)(MelFrontEnd)
