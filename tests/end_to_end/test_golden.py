"""A seed means the same sound after every change: the golden set on the shipped bundle.

Tokens are compared by hash. Waves are compared by hash where the processor has the same
instructions as the one that wrote the golden file, elsewhere by distance: the last bits of a sum
depend on how it is cut. After a change that is meant to change sounds, write the file again with

    make golden

and say why in the changelog.
"""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient

import diffsound
from diffsound.audio.io import read_audio
from diffsound.audio.mixing import frame_rms
from diffsound.batch.run import generate_batch
from diffsound.evaluation.checks import CLIPPED_LEVEL, CLIPPED_RUN, SILENT_DB
from serving_support import make_app, wait_ready

GOLDEN = Path(__file__).with_name("golden.json")
FRAME = 0.1  # seconds
LEVELS_DB = (-40.0, -6.0)  # RMS of full scale
OFFSET_DB = -40.0  # a hundredth of full scale
SILENT_SHARE = 0.8  # of frames of 20 ms; a single bark in two seconds is mostly silence
TOLERANCE = 0.05  # of a frame's RMS and a band's mean, both relative to the largest one


@cache
def pipeline(backend: str) -> diffsound.TextToSound:
    return diffsound.load(backend=backend)


@cache
def plain(backend: str = "int8") -> diffsound.Sound:
    return pipeline(backend)("a dog barks", duration=2.0, seed=7)[0]


def of_sound(sound: diffsound.Sound) -> dict[str, Any]:
    return {"tokens": sha(sound.tokens.astype(np.int64))} | of_wave(sound.wave)


def of_wave(wave: np.ndarray) -> dict[str, Any]:
    """Hash of the samples, RMS every 0.1 s, and mean magnitude of 32 equal frequency bands."""
    wave = np.asarray(wave, dtype=np.float32)
    frame = round(FRAME * 22050)
    frames = np.pad(wave, (0, -len(wave) % frame)).reshape(-1, frame).astype(np.float64)
    magnitudes = np.abs(np.fft.rfft(frames, axis=1)).mean(axis=0)
    bands = [part.mean() for part in np.array_split(magnitudes, 32)]
    return {
        "samples": len(wave),
        "wave": sha(wave),
        "rms": [float(f"{value:.4g}") for value in np.sqrt(np.square(frames).mean(axis=1))],
        "bands": [float(f"{value:.4g}") for value in bands],
        "faults": faults(wave),
    }


def faults(wave: np.ndarray) -> list[str]:
    """What nobody wants to hear in any sound: clipping, an offset, silence, a wrong level."""
    loud = np.abs(wave) >= CLIPPED_LEVEL
    level = 20 * np.log10(max(float(np.sqrt(np.square(wave, dtype=np.float64).mean())), 1e-9))
    offset = 20 * np.log10(max(abs(float(wave.mean(dtype=np.float64))), 1e-9))
    quiet = float(np.mean(frame_rms(wave, 441) < 10 ** (SILENT_DB / 20)))
    found = {
        "not a number": not np.isfinite(wave).all(),
        "clipped": bool(np.convolve(loud, np.ones(CLIPPED_RUN), "valid").max() > CLIPPED_RUN - 0.5),
        f"offset {offset:.0f} dB": offset > OFFSET_DB,
        f"level {level:.0f} dB": not LEVELS_DB[0] <= level <= LEVELS_DB[1],
        f"silent for {quiet:.0%}": quiet > SILENT_SHARE,
    }
    return [fault for fault, is_there in found.items() if is_there]


def sha(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:32]


def batch_row() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        row = {"prompt": "a bell", "seed": 5, "duration": 1.5, "steps": 8, "negative": "wind"}
        rows.write_text(json.dumps(row) + "\n", encoding="utf-8")
        generate_batch(rows, Path(folder) / "out", workers=1)
        (path,) = (Path(folder) / "out").glob("*.wav")
        return of_wave(read_audio(path, 22050))


def server_call() -> dict[str, Any]:
    body = {"prompt": "footsteps on gravel", "seed": 3, "duration": 1.5, "guidance_scale": 2.0}
    with TestClient(make_app(pipeline("int8")), base_url="http://testserver") as client:
        wait_ready(client)
        answer = client.post("/v1/generate", json=body)
        assert answer.status_code == 200
    import soundfile

    return of_wave(soundfile.read(io.BytesIO(answer.content), dtype="float32")[0])


def several() -> dict[str, Any]:
    sounds = pipeline("int8")("glass breaking", duration=1.0, num_candidates=3, keep=2, seed=11)
    seeds = {f"seed {place}": sound.seed for place, sound in enumerate(sounds)}
    return seeds | of_sound(sounds[0])


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "plain int8": lambda: of_sound(plain()),
    "plain torch": lambda: of_sound(plain("torch")),
    "one take, its own settings": lambda: of_sound(
        pipeline("int8")(
            "thunder", duration=3.0, seed=1, best_of=1, num_inference_steps=10, temperature=0.9,
            top_k=64, level=None,
        )[0]
    ),
    "scene with layers": lambda: of_sound(
        pipeline("int8")("rain, then a dog barks", duration=4.0, seed=9)[0]
    ),
    "scene drawn in one": lambda: of_sound(
        pipeline("int8")("rain, then a dog barks", duration=4.0, seed=9, layered=False)[0]
    ),
    "inpaint": lambda: of_sound(
        pipeline("int8").inpaint(plain(), "a cat meows", 0.5, 1.5, seed=4)[0]
    ),
    "inpaint a band": lambda: of_sound(
        pipeline("int8").inpaint(plain(), "wind", 0.5, 1.5, low=500.0, high=4000.0, seed=4)[0]
    ),
    "extend": lambda: of_sound(pipeline("int8").extend(plain(), "a dog barks", 1.0, seed=4)[0]),
    "vary": lambda: of_sound(pipeline("int8").vary(plain(), "a dog barks", 0.6, seed=4)[0]),
    "several, the best kept": several,
    "batch row": batch_row,
    "server call": server_call,
}  # fmt: skip


def networks() -> dict[str, Any]:
    """The names and shapes of every weight, and the names that codec and bundle go by."""
    bundle = pipeline("int8").bundle
    names = {
        stage: {name: list(t.shape) for name, t in getattr(bundle, stage).state_dict().items()}
        for stage in ("codec", "decoder", "vocoder")
    }
    return {
        "codec_fingerprint": bundle.codec_fingerprint,
        "text_fingerprint": bundle.text_encoder.fingerprint,
        "state_dicts": hashlib.sha256(json.dumps(names, sort_keys=True).encode()).hexdigest()[:32],
        "weights": {
            name: info.sha256[:16]
            for name, info in bundle.config.files.items()
            if name.endswith(".safetensors")
        },
    }


def processor() -> str:
    return f"{torch.backends.cpu.get_cpu_capability()}, {torch.backends.quantized.engine}"


def golden() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return content


def far(found: list[float], expected: list[float]) -> float:
    """The largest difference, relative to the largest value."""
    assert len(found) == len(expected)
    return float(np.abs(np.subtract(found, expected)).max() / max(expected))


@pytest.mark.parametrize("case", CASES)
def test_a_seed_means_the_same_sound(case: str) -> None:
    written = golden()
    found, expected = CASES[case](), written["sounds"][case]
    exact = {name for name in expected if name not in ("wave", "rms", "bands", "faults")}
    assert {name: found[name] for name in exact} == {name: expected[name] for name in exact}
    assert far(found["rms"], expected["rms"]) < TOLERANCE
    assert far(found["bands"], expected["bands"]) < TOLERANCE
    assert found["faults"] == []
    if processor() == written["processor"]:
        assert found["wave"] == expected["wave"]


def test_the_shipped_weights_keep_their_names() -> None:
    assert networks() == golden()["networks"]


def test_another_sound_is_noticed() -> None:
    expected = golden()["sounds"]["plain int8"]
    other = of_sound(pipeline("int8")("a dog barks", duration=2.0, seed=8)[0])
    assert other["tokens"] != expected["tokens"]
    assert far(other["rms"], expected["rms"]) > TOLERANCE


@pytest.mark.parametrize(
    ("fault", "spoil"),
    [
        ("clipped", lambda wave: np.clip(9 * wave, -1, 1)),
        ("offset", lambda wave: wave + 0.02),
        ("level", lambda wave: wave / 100),
        ("silent", lambda wave: np.append(wave, np.zeros(10 * len(wave)))),
    ],
)
def test_faults_are_noticed(fault: str, spoil: Callable[[np.ndarray], np.ndarray]) -> None:
    wave = 0.3 * np.sin(np.arange(22050) / 20)
    assert faults(wave) == []
    assert any(found.startswith(fault) for found in faults(spoil(wave)))


if __name__ == "__main__":
    content = {
        "processor": processor(),
        "networks": networks(),
        "sounds": {case: make() for case, make in CASES.items()},
    }
    wrong = {case: sound["faults"] for case, sound in content["sounds"].items() if sound["faults"]}
    if wrong:
        raise SystemExit(f"not written, because these sounds are faulty: {wrong}")
    GOLDEN.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
