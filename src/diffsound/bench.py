"""How fast is it here: the time of each stage on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from diffsound.audio.io import encode_audio
from diffsound.errors import InputError
from diffsound.pipeline import TextToSound

PROMPT = "a dog barks in the distance"


@dataclass(frozen=True)
class StageTimes:
    """Medians in seconds, in the order of a generation; `total` is one whole call and a WAV."""

    stages: dict[str, float]
    total: float
    duration: float
    steps: int
    threads: int
    backend: str

    @property
    def faster_than_real_time(self) -> float:
        """Seconds of sound made in a second."""
        return self.duration / self.total


def measure(
    bundle: str | Path | None = None,
    *,
    duration: float = 10.0,
    repeats: int = 3,
    device: str = "cpu",
    backend: str | None = None,
) -> StageTimes:
    """Time a generation of `duration` seconds with the bundle's default settings, warm.

    The decoder's time is what a whole call needs besides the other stages.
    """
    if repeats < 1:
        raise InputError(f"repeats must be at least 1, not {repeats}")
    started = time.perf_counter()
    pipeline = TextToSound.from_pretrained(bundle, device=device, backend=backend)
    load = time.perf_counter() - started
    (sound,) = pipeline(PROMPT, duration=duration, seed=0)  # warm, and the text encoder loaded
    tokens = torch.from_numpy(sound.tokens)[None].to(pipeline.device)
    mel = torch.from_numpy(sound.mel)[None].to(pipeline.device)
    steps = 0

    def count(share: float, tokens: torch.Tensor) -> None:
        nonlocal steps
        steps += 1

    pipeline(PROMPT, duration=duration, seed=0, callback=count)
    text_encoder, stages = pipeline.bundle.text_encoder, pipeline.chain.stages
    with torch.inference_mode():
        whole = _median(lambda: pipeline(PROMPT, duration=duration, seed=0), repeats)
        text = _median(lambda: text_encoder([PROMPT]), repeats)
        codec = _median(lambda: stages.decode(tokens), repeats)
        vocoder = _median(lambda: stages.vocode(mel), repeats)
    write = _median(lambda: encode_audio(sound.wave, sound.sample_rate, "wav"), repeats)
    decoder = max(0.0, whole - text - codec - vocoder)
    return StageTimes(
        stages={
            "load the bundle": load,
            "text encoder": text,
            "token decoder": decoder,
            "codec decoder": codec,
            "vocoder": vocoder,
            "write a WAV": write,
        },
        total=whole + write,
        duration=sound.duration,
        steps=steps,
        threads=torch.get_num_threads(),
        backend=pipeline.chain.stages.backend,
    )


def _median(function: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return statistics.median(times)
