"""Small sound files and prepared folders for the data tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from diffsound.audio.mel import MelConfig
from diffsound.data.clip import PrepareSettings
from diffsound.data.prepare import prepare
from diffsound.data.shards import PreparedData
from diffsound.data.sources import open_source

RATE = 8000
SMALL_MEL = MelConfig(sample_rate=RATE, n_fft=512, hop_length=128, n_mels=16, fmin=50, fmax=3800)


@pytest.fixture(scope="session")
def write_sound() -> Callable[..., Path]:
    """write(path, seconds=…, seed=…) puts a decaying noise burst there, another for each seed."""

    def write(
        path: Path, seconds: float = 0.3, seed: int = 0, rate: int = RATE, channels: int = 1
    ) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(seed)
        count = round(seconds * rate)
        swell = np.interp(np.arange(count), np.linspace(0, count, 12), rng.uniform(0.05, 0.5, 12))
        wave = (rng.standard_normal(count) * swell * 0.3).clip(-1, 1)
        soundfile.write(path, np.repeat(wave[:, None], channels, axis=1), rate)
        return path

    return write


@pytest.fixture
def settings() -> PrepareSettings:
    """Small and quick: 8 kHz, three clips to a shard."""
    return PrepareSettings(mel=SMALL_MEL, clips_per_shard=3, max_seconds=2.0)


@pytest.fixture
def sounds(tmp_path: Path, write_sound: Callable[..., Path]) -> Path:
    """A corpus folder of seven clips in two splits and three licences."""
    root = tmp_path / "sounds"
    rows = ["id,file,split,label,title,caption,tags,licence,author,url,group"]
    licences = ["CC0-1.0", "CC-BY-3.0", "CC-BY-NC"]
    for i in range(7):
        write_sound(root / f"audio/clip{i}.wav", seconds=0.2 + 0.05 * i, seed=i)
        label, split = ("dog", "train") if i < 5 else ("rain", "valid")
        rows.append(
            f'clip{i},audio/clip{i}.wav,{split},{label},"{label}, take {i}",a {label} sound,'
            f"{label};outdoors,{licences[i % 3]},maker {i},https://example.org/{i},{label}"
        )
    (root / "metadata.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return root


@pytest.fixture
def prepared(sounds: Path, tmp_path: Path, settings: PrepareSettings) -> PreparedData:
    """Those seven clips, prepared into three shards."""
    prepare(open_source(str(sounds)), tmp_path / "prepared", settings)
    return PreparedData.open(tmp_path / "prepared")
