"""Plugs for outside ears: their front end by its definition, the three kinds, and bad ones."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from diffsound.audio.io import resample
from diffsound.errors import ConfigError, DiffsoundError, InputError
from diffsound.evaluation.ears import EarConfig, LogMel, load_ear, log_mel, patches
from ear_support import FRONT_END, PYTHON_EAR, onnx_ear, tflite_ear
from metric_support import sound

CONFIG = EarConfig.model_validate(FRONT_END)


def slow_log_mel(config: LogMel, wave: np.ndarray, rate: int) -> np.ndarray:
    """Frame by frame, bin by bin and band by band."""

    def mel(hertz: float) -> float:
        return 2595 * math.log10(1 + hertz / 700)

    step = (mel(config.high) - mel(config.low)) / (config.bands + 1)
    rows = []
    for start in range(0, len(wave) - config.window + 1, config.hop):
        frame = [
            float(wave[start + n]) * (0.5 - 0.5 * math.cos(2 * math.pi * n / config.window))
            for n in range(config.window)
        ]
        row = []
        bins = range(config.n_fft // 2 + 1)
        phases = [[-2j * math.pi * k * n / config.n_fft for n in range(len(frame))] for k in bins]
        size = [abs(np.dot(frame, np.exp(phase))) ** config.power for phase in phases]
        for band in range(config.bands):
            centre = mel(config.low) + (band + 1) * step
            weights = [
                max(0.0, 1 - abs(mel(k * rate / config.n_fft) - centre) / step) for k in bins
            ]
            row.append(math.log(np.dot(size, weights) + config.offset))
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("power", [1, 2])
def test_the_front_end_matches_its_definition(power: int) -> None:
    config = LogMel(window=20, hop=7, n_fft=32, bands=5, low=50, high=3900, power=power)
    wave = sound(3)[:70]
    expected = slow_log_mel(config, wave, 8000)
    assert expected.shape == (8, 5)
    np.testing.assert_allclose(log_mel(config, wave, 8000), expected, atol=1e-6)
    decibels = log_mel(config.model_copy(update={"log": "db"}), wave, 8000)
    np.testing.assert_allclose(decibels, expected * (20 / power) / math.log(10), atol=1e-5)


def test_patches_overlap_and_incomplete_ones_are_dropped() -> None:
    wave = sound(1, 0.5)  # 1 + (4000 - 200) // 80 = 48 frames
    frames = log_mel(CONFIG.log_mel, wave, 8000)
    parts = patches(CONFIG, wave)
    assert [part.shape for part in parts] == [(20, 12)] * 3
    np.testing.assert_allclose(parts[2], frames[20:40], rtol=1e-6)
    (short,) = patches(CONFIG, wave[:100])
    assert short.shape == (20, 12)  # padded with silence
    whole = CONFIG.model_copy(update={"patch": None})
    assert [part.shape for part in patches(whole, wave)] == [(48, 12)]
    raw = EarConfig(sample_rate=8000, patch=1500)
    assert [part.shape for part in patches(raw, wave)] == [(1500,)] * 2


def test_an_onnx_ear_averages_its_patches(tmp_path: Path) -> None:
    ear = load_ear(onnx_ear(tmp_path))
    wave = sound(2, 0.7)
    expected = np.mean([part.mean(axis=0) for part in patches(CONFIG, wave)], axis=0)
    np.testing.assert_allclose(ear(wave, 8000), expected, atol=1e-5)
    fast = resample(wave, 8000, 16000)
    again = np.mean([p.mean(axis=0) for p in patches(CONFIG, resample(fast, 16000, 8000))], axis=0)
    np.testing.assert_allclose(ear(fast, 16000), again, atol=1e-5)
    first = load_ear(onnx_ear(tmp_path, "sum", output=None))  # the network's first output
    np.testing.assert_allclose(first(wave, 8000), 20 * expected, rtol=1e-4)
    assert ear.cached
    assert ear.sha256 != first.sha256


def test_a_tflite_ear_may_name_an_inner_tensor(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    path = tflite_ear(tmp_path, frames=20, bands=12)
    wave = sound(4)
    expected = np.mean([part.mean(axis=0) for part in patches(CONFIG, wave)], axis=0)
    for output, value in (("inner", expected), (None, [expected.mean()])):
        config = FRONT_END | {"output": output, "input": "patch", "shape": [1, 20, 12]}
        path.with_suffix(".json").write_text(json.dumps(config))
        np.testing.assert_allclose(load_ear(path)(wave, 8000), value, atol=1e-4)
    path.with_suffix(".json").write_text(json.dumps(FRONT_END | {"output": "other"}))
    with pytest.raises(InputError, match=r"no output 'other'; it has: .*inner"):
        load_ear(path)
    path.with_suffix(".json").write_text(json.dumps(FRONT_END | {"shape": [20, 12]}))
    with pytest.raises(InputError, match=r"ear\.tflite failed"):
        load_ear(path)(wave, 8000)
    path.write_bytes(b"no network")
    with pytest.raises(InputError, match="cannot be loaded"):
        load_ear(path)


def test_a_python_ear_gets_the_wave_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "ear.py"
    path.write_text(PYTHON_EAR)
    ear = load_ear(path)
    wave = np.full(100, -0.5, dtype=np.float32)
    np.testing.assert_allclose(ear(wave, 11025), [0.5, 11025, 100])
    assert not ear.cached  # its answers may depend on other files


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def load(path: return", "cannot be loaded"),
        ("import no_such_package", "no_such_package"),
        ("ear = 1", r"must define load\(path\)"),
        ("def load(path):\n    return 3", r"a function of \(wave, rate\)"),
        ("def load(path):\n    raise KeyError('weights')", "weights"),
    ],
)
def test_a_bad_python_ear_is_reported_in_one_line(
    source: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "ear.py"
    path.write_text(source)
    with pytest.raises(InputError, match=message) as caught:
        load_ear(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("answer", ["[[1.0, 2.0]]", "[]", "[float('nan')]"])
def test_an_embedding_must_be_a_row_of_finite_numbers(answer: str, tmp_path: Path) -> None:
    path = tmp_path / "ear.py"
    path.write_text(f"def load(path):\n    return lambda wave, rate: {answer}")
    with pytest.raises(InputError, match="one embedding of finite numbers"):
        load_ear(path)(sound(1), 8000)


def test_a_python_ear_that_fails_is_reported_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "ear.py"
    path.write_text("def load(path):\n    return lambda wave, rate: wave[10**9]")
    with pytest.raises(InputError, match=r"the ear ear\.py failed: index 1000000000 is out"):
        load_ear(path)(sound(1), 8000)


def test_bad_plugs_are_refused_when_loaded(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no ear"):
        load_ear(tmp_path / "none.onnx")
    other = tmp_path / "ear.txt"
    other.touch()
    with pytest.raises(InputError, match=r"not ear\.txt"):
        load_ear(other)
    path = onnx_ear(tmp_path)
    described = path.with_suffix(".json")
    for content, message in (
        ("[]", "JSON object"),
        ("{", r"needs ear\.json"),
        (json.dumps(FRONT_END | {"patch_size": 3}), "unknown key 'patch_size'"),
        (json.dumps(FRONT_END | {"input": "x"}), "no input 'x'; it has: patch"),
        (json.dumps(FRONT_END | {"output": "x"}), "no output 'x'; it has: total, embedding"),
    ):
        described.write_text(content)
        with pytest.raises((InputError, ConfigError), match=message):
            load_ear(path)
    described.unlink()
    with pytest.raises(InputError, match=r"needs ear\.json beside it"):
        load_ear(path)
    onnx_ear(tmp_path)
    path.write_bytes(b"no network")
    with pytest.raises(DiffsoundError, match="cannot be loaded"):
        load_ear(path)
