"""Data small enough for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diffsound.data.clip import PreparedClip, PrepareSettings
from diffsound.data.prepare import write_clips
from diffsound.data.record import AudioLocation, Record
from metric_support import MEL, sound


@pytest.fixture(scope="session")
def sound_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve training clips, six to be scored and one without a caption, prepared."""
    clips = [
        prepared_clip(
            number,
            labels=("noise",),
            split="train" if number < 12 else "valid",
            captions=(f"a <loud> sound {number}",) if number < 18 else (),
        )
        for number in range(19)
    ]
    return write_data(tmp_path_factory.mktemp("sounds") / "data", clips)


@pytest.fixture(scope="session")
def captioned_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four held-out clips with three captions each, one of them twice; prepared."""
    captions = [
        (f"sound {n}", f"a dog {n}", f"sound {n}", "rain, and a dog barks") for n in range(4)
    ]
    clips = [
        prepared_clip(number, labels=("noise",), split="valid", captions=said)
        for number, said in enumerate(captions)
    ]
    return write_data(tmp_path_factory.mktemp("captioned") / "data", clips)


@pytest.fixture(scope="session")
def labelled_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four held-out clips of each of the classifier's classes but "bell", which has one; prepared.

    A clip with two labels and one of a class nobody asks for are among them.
    """
    labels = [("dog",), ("rain",)] * 4 + [("bell",), ("dog", "rain"), ("noise",)]
    clips = [
        prepared_clip(number, labels=label, split="valid", captions=(f"the sound of {label[0]}",))
        for number, label in enumerate(labels)
    ]
    return write_data(tmp_path_factory.mktemp("labelled") / "data", clips)


def prepared_clip(
    number: int, *, labels: tuple[str, ...], split: str, captions: tuple[str, ...]
) -> PreparedClip:
    """The numbered sound with what is said of it."""
    record = Record(
        id=f"clip-{number:02d}",
        audio=AudioLocation(path=""),
        captions=captions,
        labels=labels,
        split=split,
        licence="cc0",
    )
    return PreparedClip(record, (np.clip(sound(number), -1, 1) * 32767).astype(np.int16), {})


def write_data(folder: Path, clips: list[PreparedClip]) -> Path:
    write_clips(folder, clips, PrepareSettings(mel=MEL), source="synthetic")
    return folder
