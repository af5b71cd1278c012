"""Recordings that the recipes start from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

RATE = 22050


@pytest.fixture
def record(tmp_path: Path) -> Callable[[int, str, str], Path]:
    """Writes noises and bells of half a second and their captions.csv; each row from a template."""

    def write(count: int, header: str, row: str) -> Path:
        folder = tmp_path / "recordings"
        folder.mkdir()
        rng = np.random.default_rng(0)
        rows = [header]
        for number in range(count):
            name, split = ("noise", "bell")[number % 2], "train" if number < 8 else "valid"
            time = np.arange(RATE // 2) / RATE
            tone = np.sin(2 * np.pi * (400 + 30 * number) * time)
            sound = tone if name == "bell" else rng.standard_normal(len(time))
            wave = (0.3 * np.exp(-4 * time) * sound).clip(-1, 1)
            soundfile.write(folder / f"{name}-{number}.wav", wave, RATE)
            rows.append(row.format(name=name, number=number, split=split))
        (folder / "captions.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
        return folder

    return write
