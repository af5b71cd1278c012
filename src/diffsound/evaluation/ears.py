"""Outside ears: networks trained elsewhere that turn a wave into an embedding (`--ear PLUG`).

    ear.py       a Python file with `load(path) -> ear`, where path is the file itself and
                 `ear(wave, rate)` takes float32 [samples] at `rate` Hz and returns [D] numbers;
                 the file is executed, so plug in only what you would run yourself
    ear.onnx     a network, with `ear.json` beside it that describes its front end (`EarConfig`)
    ear.tflite   the same for TensorFlow Lite

What is made of the embeddings is in `probe.py`.
"""

from __future__ import annotations

import runpy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import Field, PositiveFloat, PositiveInt

from diffsound.audio.io import resample
from diffsound.config import Config, parse_config
from diffsound.errors import DiffsoundError, InputError, MissingExtraError
from diffsound.files import read_json, sha256


class LogMel(Config):
    """A log-mel front end: frames without padding, a periodic Hann window, mel triangles (HTK).

    window, hop, n_fft: samples. low, high: Hz. power: 1 for magnitudes, 2 for energies.
    offset: added before the logarithm, which is natural, or of base 10, or in decibels.
    """

    window: PositiveInt
    hop: PositiveInt
    n_fft: PositiveInt
    bands: PositiveInt
    low: float = Field(ge=0)
    high: PositiveFloat
    power: Literal[1, 2] = 1
    offset: PositiveFloat = 0.001
    log: Literal["ln", "log10", "db"] = "ln"


class EarConfig(Config):
    """The JSON file beside a network: what it is given, and which of its tensors is the embedding.

    log_mel: None for a network that takes the wave itself. patch, patch_hop: frames of the mel, or
    samples of the wave; None gives it the whole clip. The embeddings of a clip's patches are
    averaged. shape: of the input, by default [1, frames, bands] or [1, samples]. input, output:
    tensor names, by default the network's first; for TFLite `output` may name an inner tensor.
    """

    sample_rate: PositiveInt
    log_mel: LogMel | None = None
    patch: PositiveInt | None = None
    patch_hop: PositiveInt | None = None
    shape: tuple[PositiveInt, ...] | None = None
    input: str | None = None
    output: str | None = None


# What a plug provides: wave float32 [samples] and its rate in Hz to an embedding [D].
Embed = Callable[[np.ndarray, int], np.ndarray]


@dataclass(frozen=True)
class OutsideEar:
    """A loaded plug; `sha256` is of its file, and of the description beside a network.

    cached: whether embeddings may be kept; what a Python file answers may depend on other files.
    """

    name: str
    sha256: str
    embed: Embed
    cached: bool

    def __call__(self, wave: np.ndarray, rate: int) -> np.ndarray:
        """Wave float32 [samples] at `rate` Hz to its embedding, float32 [D]."""
        try:
            found = np.asarray(self.embed(wave, rate), dtype=np.float32)
        except DiffsoundError:
            raise
        except Exception as error:  # whatever goes wrong in the user's file
            raise InputError(f"the ear {self.name} failed: {_one_line(error)}") from error
        if found.ndim != 1 or not found.size or not np.isfinite(found).all():
            raise InputError(
                f"the ear {self.name} must return one embedding of finite numbers [D], "
                f"not an array {list(found.shape)}"
            )
        return found


def load_ear(path: str | Path) -> OutsideEar:
    """The ear of a plug: a .py, .onnx or .tflite file."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no ear {path}; give a .py, .onnx or .tflite file")
    if path.suffix == ".py":
        return OutsideEar(path.name, sha256(path), _python_ear(path), cached=False)
    if path.suffix not in (".onnx", ".tflite"):
        raise InputError(f"an ear is a .py, .onnx or .tflite file, not {path.name}")
    described = path.with_suffix(".json")
    try:
        content = read_json(described)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path.name} needs {described.name} beside it, which describes its front end: {error}"
        ) from error
    if not isinstance(content, dict):
        raise InputError(f"{described} must hold a JSON object")
    config = parse_config(EarConfig, content, str(described))
    run = (_onnx if path.suffix == ".onnx" else _tflite)(path, config)
    name = f"{sha256(path)}{sha256(described)}"
    return OutsideEar(path.name, name, NetworkEar(config, run), cached=True)


def _python_ear(path: Path) -> Embed:
    try:
        load = runpy.run_path(str(path)).get("load")
        if not callable(load):
            raise InputError(f"the ear {path} must define load(path) -> ear(wave, rate)")
        ear = load(str(path))
    except InputError:
        raise
    except Exception as error:  # whatever is wrong in the user's file
        raise InputError(f"the ear {path} cannot be loaded: {_one_line(error)}") from error
    if not callable(ear):
        raise InputError(f"load(path) of the ear {path} must return a function of (wave, rate)")
    return ear


class NetworkEar:
    """A network behind its front end."""

    def __init__(self, config: EarConfig, run: Callable[[np.ndarray], np.ndarray]) -> None:
        """run: a patch in the shape of the network's input to its output."""
        self.config, self._run = config, run

    def __call__(self, wave: np.ndarray, rate: int) -> np.ndarray:
        """Mean output over the patches of a wave [samples]."""
        parts = patches(self.config, resample(wave, rate, self.config.sample_rate))
        shape = self.config.shape
        shaped = (part.reshape(shape) if shape else part[None] for part in parts)
        return np.asarray(np.mean([self._run(part).reshape(-1) for part in shaped], axis=0))


def patches(config: EarConfig, wave: np.ndarray) -> list[np.ndarray]:
    """What the network hears of a wave [samples] at its rate: float32 [patch, bands] or [patch].

    A wave shorter than one patch is padded with silence; a last incomplete patch is left out.
    """
    mel = config.log_mel
    least = config.patch or 1
    samples = least if mel is None else (least - 1) * mel.hop + mel.window
    wave = np.pad(wave, (0, max(0, samples - len(wave))))
    frames = wave if mel is None else log_mel(mel, wave, config.sample_rate)
    if config.patch is None:
        return [frames.astype(np.float32)]
    hop = config.patch_hop or config.patch
    starts = range(0, len(frames) - config.patch + 1, hop)
    return [frames[at : at + config.patch].astype(np.float32) for at in starts]


def log_mel(config: LogMel, wave: np.ndarray, rate: int) -> np.ndarray:
    """Wave [samples] to log-mel [frames, bands]."""
    frames = np.lib.stride_tricks.sliding_window_view(wave, config.window)[:: config.hop]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi / config.window * np.arange(config.window))
    spectrum = np.abs(np.fft.rfft(frames * hann, config.n_fft)) ** config.power
    found = np.log(spectrum @ _mel_triangles(config, rate) + config.offset)
    scale = {"ln": 1.0, "log10": 1 / np.log(10), "db": 10 * (3 - config.power) / np.log(10)}
    return np.asarray(found * scale[config.log])


def _mel_triangles(config: LogMel, rate: int) -> np.ndarray:
    """Triangles that are straight in mel, not in Hz, as TensorFlow's: [bins, bands]."""

    def mel(hertz: np.ndarray) -> np.ndarray:
        return np.asarray(1127.0 * np.log1p(hertz / 700.0))

    bins = mel(np.linspace(0, rate / 2, config.n_fft // 2 + 1))[:, None]
    low, high = mel(np.array([config.low, config.high]))
    edges = np.linspace(low, high, config.bands + 2)
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return np.maximum(0.0, np.minimum(rising, falling))


def _onnx(path: Path, config: EarConfig) -> Callable[[np.ndarray], np.ndarray]:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("onnxruntime", "ear") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's exceptions share no base class
        raise InputError(f"the ear {path} cannot be loaded: {_one_line(error)}") from error
    given = _chosen(config.input, [one.name for one in session.get_inputs()], path, "input")
    made = _chosen(config.output, [one.name for one in session.get_outputs()], path, "output")

    def run(part: np.ndarray) -> np.ndarray:
        try:
            return np.asarray(session.run([made], {given: part})[0], dtype=np.float32)
        except Exception as error:
            raise InputError(f"the ear {path} failed: {_one_line(error)}") from error

    return run


def _tflite(path: Path, config: EarConfig) -> Callable[[np.ndarray], np.ndarray]:
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise MissingExtraError("ai-edge-litert", "ear") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # keeping inner tensors costs memory, it says
            network = Interpreter(
                str(path),
                num_threads=torch.get_num_threads(),
                experimental_preserve_all_tensors=config.output is not None,
            )
        network.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        raise InputError(f"the ear {path} cannot be loaded: {_one_line(error)}") from error
    inputs = {one["name"]: one for one in network.get_input_details()}
    outputs = {one["name"]: one for one in network.get_output_details()}
    if config.output is not None:
        outputs |= {one["name"]: one for one in network.get_tensor_details()}
    given = inputs[_chosen(config.input, list(inputs), path, "input")]
    made = outputs[_chosen(config.output, list(outputs), path, "output")]

    def run(part: np.ndarray) -> np.ndarray:
        scale, zero = given["quantization"]
        if scale:
            limits = np.iinfo(given["dtype"])
            part = np.clip(np.round(part / scale) + zero, limits.min, limits.max)
        try:
            network.set_tensor(given["index"], part.astype(given["dtype"]))
            network.invoke()
        except (ValueError, RuntimeError) as error:
            raise InputError(f"the ear {path} failed: {_one_line(error)}") from error
        found = network.get_tensor(made["index"]).astype(np.float32)
        scale, zero = made["quantization"]
        return np.asarray((found - zero) * scale if scale else found)

    return run


def _chosen(wanted: str | None, names: Sequence[str], path: Path, what: str) -> str:
    if wanted is None:
        return names[0]
    if wanted not in names:
        shown = ", ".join(names[:5])
        raise InputError(f"{path.name} has no {what} '{wanted}'; it has: {shown}")
    return wanted


def _one_line(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:200]
