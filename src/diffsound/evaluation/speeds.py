"""How long one sound takes: to its mel, as in the paper's table 3, and to its wave."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from diffsound.decoder.ar import ARDecoder
from diffsound.evaluation.scores import Score
from diffsound.generation.bench import watched
from diffsound.generation.pipeline import TextToSound

MEL, WAVE, UNCACHED = "s/mel", "s/sound", "s/mel, no cache"
_SOUNDS = 3  # timed one at a time, after one that is not


def seconds_per_sound(
    pipeline: TextToSound, texts: Sequence[str], seconds: float, sampling: Mapping[str, Any]
) -> dict[str, Score]:
    """Seconds without the vocoder and with it; of an AR decoder also without its cache."""
    mel, wave = _timed(pipeline, texts, seconds, sampling)
    how = f"{torch.get_num_threads()} threads, one sound at a time"
    scores = {
        MEL: Score(MEL, mel, "lower", note=f"without the vocoder, {how}; the paper: on a P40"),
        WAVE: Score(WAVE, wave, "lower", note=f"all stages, {how}"),
    }
    decoder = pipeline.bundle.decoder
    if isinstance(decoder, ARDecoder):
        note = f"AR with a cache of keys and values, {how}"
        scores[MEL] = replace(scores[MEL], note=note)
        decoder.generate = partial(decoder.generate, use_cache=False)  # type: ignore[method-assign]
        try:
            mel, _ = _timed(pipeline, texts, seconds, sampling)
        finally:
            vars(decoder).pop("generate", None)
        note = f"AR that computes everything again at every step, as the paper's does; {how}"
        scores[UNCACHED] = Score(UNCACHED, mel, "lower", note=note)
    return scores


def _timed(
    pipeline: TextToSound, texts: Sequence[str], seconds: float, sampling: Mapping[str, Any]
) -> tuple[float, float]:
    """Seconds to a mel and to a wave, means of a few sounds."""
    pipeline(texts[0], duration=seconds, seed=0, **sampling)
    chosen = texts[:_SOUNDS]
    started = time.perf_counter()
    with watched(pipeline) as spent:
        for text in chosen:
            pipeline(text, duration=seconds, seed=0, **sampling)
    whole = time.perf_counter() - started
    return (whole - spent["vocoder"]) / len(chosen), whole / len(chosen)
