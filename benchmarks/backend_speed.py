"""Which backend is faster here: torch, ONNX, and both with int8 dense layers.

    python benchmarks/backend_speed.py [--bundle DIR] [--seconds 5] [--json out.json] [--quick]

One guided evaluation of the decoder's network, the codec decoder and the vocoder, each alone, as
ratios to torch in the same run. `--cpu-time` counts processor time instead of wall time, for a
machine that is busy with other things. At the end it names the backend that makes a whole sound
fastest, and the bundle's default. `--quick` only shows that it works.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from diffsound.decoder import SamplingSettings
from diffsound.decoder.diffsound import Predictor
from diffsound.decoder.sampling import TokenRequest
from diffsound.model.backends import default_backend, quantize_int8
from diffsound.model.bundle import Bundle
from diffsound.model.onnx_export import export_onnx
from diffsound.model.onnx_runtime import Session, SessionPredictor
from diffsound.text.features import TextFeatures

GUIDANCE = 3.0


def fastest(function: Callable[[], object], repeats: int, clock: Callable[[], float]) -> float:
    """The best of some runs: what disturbs a run only ever makes it slower."""
    best = float("inf")
    for _ in range(repeats):
        started = clock()
        function()
        best = min(best, clock() - started)
    return best


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--steps", type=int, default=25, help="of a whole sound")
    parser.add_argument("--quick", action="store_true", help="a second of sound, measured twice")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.seconds, arguments.repeats = 1.0, 2
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    with tempfile.TemporaryDirectory() as folder:
        bundle = Bundle.from_pretrained(arguments.bundle)
        report = measure(bundle, Path(folder), arguments.seconds, arguments.repeats, clock)
    kind = "processor" if arguments.cpu_time else "wall"
    print(f"{arguments.seconds:g} s of sound, {torch.get_num_threads()} threads, {kind} time")
    for stage, times in report.items():
        for name, seconds in times.items():
            ratio = times["torch"] / seconds
            print(f"{stage:>14}  {name:<11} {1000 * seconds:8.1f} ms   {ratio:5.2f}x torch")
    whole = {name: whole_sound(report, name, arguments.steps) for name in report["decoder step"]}
    for name, seconds in whole.items():
        ratio = whole["torch"] / seconds
        print(f"{'all networks':>14}  {name:<11} {1000 * seconds:8.1f} ms   {ratio:5.2f}x torch")
    fastest_one = min(whole, key=whole.__getitem__)
    print(
        f"a sound of {arguments.steps} steps: the fastest is {fastest_one}; "
        f"the bundle's default is {default_backend(bundle, 'cpu')}"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2))


def whole_sound(report: dict[str, dict[str, float]], backend: str, steps: int) -> float:
    """Seconds of all networks for one sound, each stage by the backend or its float32 sibling."""
    sibling = backend.removesuffix(" int8")
    return sum(
        times.get(backend, times[sibling]) * (steps if stage == "decoder step" else 1)
        for stage, times in report.items()
    )


def measure(
    bundle: Bundle, folder: Path, seconds: float, repeats: int, clock: Callable[[], float]
) -> dict[str, dict[str, float]]:
    """Seconds of each stage with each backend."""
    sessions = {}
    for name, int8 in (("onnx", False), ("onnx int8", True)):
        bundle.save_pretrained(folder / name)
        export_onnx(Bundle.from_pretrained(folder / name), folder / name, int8=int8)
        sessions[name] = {p.stem: Session(p) for p in (folder / name / "onnx").glob("*.onnx")}
    mel = bundle.config.codec.mel
    frames = round(seconds * mel.sample_rate / mel.hop_length)
    columns = -(-frames // bundle.codec.time_stride)
    decoder = bundle.decoder
    middle = bundle.config.decoder.model.timesteps // 2
    tokens = torch.randint(0, decoder.codebook_size + 1, (1, decoder.rows, columns))
    features = torch.randn(2, 9, decoder.text_dim)
    text = TextFeatures(features, torch.ones(2, 9, dtype=torch.bool), features.mean(1))

    def step(predict: Predictor) -> Callable[[], object]:
        predict.prepare([middle])
        return lambda: predict(tokens, middle)

    guided = SamplingSettings(guidance_scale=GUIDANCE)
    request = TokenRequest(text[:1], (decoder.rows, columns), [], guided, negative=text[1:])
    steps = {"torch": step(Predictor(decoder.transformer, request))}
    for name, files in sessions.items():
        steps[name] = step(SessionPredictor(files["decoder"], decoder.transformer, request))
    report = {"decoder step": {n: fastest(f, repeats, clock) for n, f in steps.items()}}
    quantized = quantize_int8(Bundle.from_pretrained(folder / "onnx").decoder)
    int8 = step(Predictor(quantized.transformer, request))
    report["decoder step"]["torch int8"] = fastest(int8, repeats, clock)

    codes = tokens.clamp(max=bundle.codec.codebook_size - 1)
    image = bundle.codec.decode(codes)
    files = sessions["onnx"]
    report["codec decoder"] = {
        "torch": fastest(lambda: bundle.codec.decode(codes), repeats, clock),
        "onnx": fastest(lambda: files["codec"](tokens=codes), repeats, clock),
    }
    if "vocoder" in files:
        report["vocoder"] = {
            "torch": fastest(lambda: bundle.vocoder(image), repeats, clock),
            "onnx": fastest(lambda: files["vocoder"](mel=image), repeats, clock),
        }
    return report


if __name__ == "__main__":
    main()
