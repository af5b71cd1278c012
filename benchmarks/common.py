"""What benchmarks share: a figure beside its target, synthetic sounds, an untrained codec."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from diffsound.audio.mel import MelConfig
from diffsound.codec.codec import Codec
from diffsound.codec.config import CodecConfig
from diffsound.data.clip import PreparedClip, PrepareSettings
from diffsound.data.prepare import write_clips
from diffsound.data.record import AudioLocation, Record
from diffsound.weights import write_export

CONFIGS = Path(__file__).parents[1] / "configs"
MEL = MelConfig.full_band()


def synthetic_data(folder: Path, clips: int = 96, seconds: float = 2.4) -> Path:
    """A prepared folder of decaying noises, one in eight of them for validation."""

    def clip(number: int) -> PreparedClip:
        rng = np.random.default_rng(number)
        time = np.arange(int(seconds * MEL.sample_rate)) / MEL.sample_rate
        wave = 0.3 * np.exp(-2 * time) * rng.standard_normal(len(time))
        record = Record(
            id=f"noise-{number:04d}",
            audio=AudioLocation(path=""),
            captions=(f"noise number {number}", "something falls and rolls away"),
            labels=("noise",),
            source="esc50",  # configs/small/decoder.yaml looks for clips of this source
            split="valid" if number % 8 == 7 else "train",
            licence="cc0",
        )
        return PreparedClip(record, (np.clip(wave, -1, 1) * 32767).astype(np.int16), {})

    settings = PrepareSettings(mel=MEL)
    write_clips(folder, map(clip, range(clips)), settings, source="synthetic")
    return folder


def untrained_codec(run: Path) -> Path:
    """The run of a small codec whose codes were placed and which learned nothing."""
    torch.manual_seed(0)
    config = CodecConfig.small()
    codec = Codec(config)
    codec(torch.rand(16, config.n_mels, 64))
    parts = {"codec": config.model_dump(mode="json"), "mel": MEL.model_dump(mode="json")}
    run.mkdir(parents=True)
    write_export(run, "codec", parts, codec.state_dict(), step=0, metrics={})
    return run


def check(
    what: str,
    value: float,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    form: str = ".2f",
) -> bool:
    """Print the figure with PASS or FAIL; form: how to write it, as in f"{value:.2f}"."""
    low = at_least is None or value >= at_least
    high = at_most is None or value <= at_most
    bounds = {"at least": at_least, "at most": at_most}
    said = ", ".join(
        f"{word} {bound:{form}}" for word, bound in bounds.items() if bound is not None
    )
    print(f"{what:<42} {value:{form}}   ({said})  {'PASS' if low and high else 'FAIL'}", flush=True)
    return low and high
