"""The time of each stage on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from diffsound.audio.io import encode_audio
from diffsound.errors import InputError
from diffsound.generation.pipeline import TextToSound

PROMPT = "a dog barks in the distance"
REST = "mixing, level"  # everything in a call outside the stages


@dataclass(frozen=True)
class StageTimes:
    """Medians in seconds, in the order of a generation; `total` is one whole call and a WAV."""

    stages: dict[str, float]
    total: float
    duration: float
    steps: int
    best_of: int
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
    **sampling: Any,
) -> StageTimes:
    """Time a generation of `duration` seconds, warm, with the bundle's settings or `sampling`.

    The stages are timed while they make sounds.
    """
    if repeats < 1:
        raise InputError(f"repeats must be at least 1, not {repeats}")
    started = time.perf_counter()
    pipeline = TextToSound.from_pretrained(bundle, device=device, backend=backend)
    load = time.perf_counter() - started
    steps = 0

    def count(share: float, tokens: torch.Tensor) -> None:
        nonlocal steps
        steps += 1

    # Warm up, and load everything that is loaded on first use.
    (sound,) = pipeline(PROMPT, duration=duration, seed=0, callback=count, **sampling)
    calls: list[dict[str, float]] = []
    for _ in range(repeats):
        with watched(pipeline) as spent:
            started = time.perf_counter()
            pipeline(PROMPT, duration=duration, seed=0, **sampling)
            whole = time.perf_counter() - started
        calls.append(spent | {REST: whole - sum(spent.values()), "whole": whole})
    medians = {name: statistics.median(call[name] for call in calls) for name in calls[0]}
    whole = medians.pop("whole")
    write = _median(lambda: encode_audio(sound.wave, sound.sample_rate, "wav"), repeats)
    return StageTimes(
        stages={"load the bundle": load} | medians | {"write a WAV": write},
        total=whole + write,
        duration=sound.duration,
        steps=steps,
        best_of=pipeline.settings(**sampling).best_of,
        threads=torch.get_num_threads(),
        backend=pipeline.backend,
    )


@contextmanager
def watched(pipeline: TextToSound) -> Iterator[dict[str, float]]:
    """Seconds that each stage takes while the pipeline is used, without waiting for other stages.

    A decoder whose takes are compared early waits for codec and matcher.
    """
    stages: list[tuple[Any, str, str]] = [
        (pipeline, "encode_text", "text encoder"),
        (pipeline.decoder, "generate", "token decoder"),
        (pipeline, "sketch", "codec decoder"),
        (pipeline, "decode", "codec decoder"),
    ]
    if "matcher" in pipeline.bundle.judges:
        stages.append((pipeline.matcher, "fit", "matcher"))
    stages.append((pipeline, "vocode", "vocoder"))
    spent = {stage: 0.0 for _, _, stage in stages}
    at_work: list[str] = []

    def timed(work: Callable[..., Any], stage: str) -> Callable[..., Any]:
        @wraps(work)
        def run(*args: Any, **kwargs: Any) -> Any:
            at_work.append(stage)
            started = time.perf_counter()
            try:
                return work(*args, **kwargs)
            finally:
                took = time.perf_counter() - started
                at_work.pop()
                spent[stage] += took
                if at_work:
                    spent[at_work[-1]] -= took

        return run

    for owner, name, stage in stages:
        setattr(owner, name, timed(getattr(owner, name), stage))
    try:
        yield spent
    finally:
        for owner, name, _ in stages:
            delattr(owner, name)  # uncovers the class's method


def _median(function: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return statistics.median(times)
