"""A prepared folder of short synthetic sounds, small enough to train on in a test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diffsound.audio.mel import MelConfig
from diffsound.data.clip import PreparedClip, PrepareSettings
from diffsound.data.prepare import write_clips
from diffsound.data.record import AudioLocation, Record
from diffsound.training.runs import train

TINY = Path(__file__).parents[2] / "configs" / "tiny"

RATE = 8000
MEL = MelConfig(n_fft=256, hop_length=64, n_mels=32, fmin=0.0, fmax=4000.0, sample_rate=RATE)


def _clip(number: int, split: str, *more: str) -> PreparedClip:
    rng = np.random.default_rng(number)
    time = np.arange(RATE // 2 + 137 * number) / RATE
    tone = np.sin(2 * np.pi * rng.uniform(200, 2000) * time)
    noise = rng.standard_normal(len(time))
    wave = 0.3 * np.exp(-3 * time) * (tone if number % 2 else noise)
    label = "tone" if number % 2 else "noise"
    record = Record(
        id=f"clip-{number:02d}",
        audio=AudioLocation(path=""),
        captions=(f"a {label}",),
        labels=(label, *more),
        split=split,
        licence="cc0",
    )
    return PreparedClip(record, (np.clip(wave, -1, 1) * 32767).astype(np.int16), {})


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve training and four validation clips."""
    folder = tmp_path_factory.mktemp("prepared") / "data"
    clips = [_clip(number, "train" if number < 12 else "valid") for number in range(16)]
    write_clips(folder, clips, PrepareSettings(mel=MEL), source="synthetic")
    return folder


@pytest.fixture(scope="session")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, but every third clip has two more labels."""
    folder = tmp_path_factory.mktemp("several") / "data"
    more = [() if number % 3 else ("Wind", "Gate") for number in range(16)]
    clips = [_clip(at, "train" if at < 12 else "valid", *labels) for at, labels in enumerate(more)]
    write_clips(folder, clips, PrepareSettings(mel=MEL), source="synthetic")
    return folder


@pytest.fixture(scope="session")
def tiny_codec(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a codec after two steps; read-only."""
    run = tmp_path_factory.mktemp("tiny-codec") / "run"
    settings = ["train.log=none", "train.max_steps=2"]
    train("codec", TINY / "codec.yaml", prepared, run, settings, quiet=True)
    return run
