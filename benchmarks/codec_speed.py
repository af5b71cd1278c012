"""How much work a codec is, as ratios measured in one run.

    python benchmarks/codec_speed.py

prints, for the `small` codec: seconds of sound per second of work when training, encoding and
decoding; and a training step's time over that of its own matrix products alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from diffsound.codec import Codec, CodecConfig

FRAMES_PER_SECOND = 22050 / 256
BATCH, FRAMES = 16, 216


def seconds(work: Callable[[], object], repeats: int = 10) -> float:
    """The fastest of several timings: what the machine can do when nobody disturbs it."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def dense_layers(codec: Codec, mel: Tensor) -> list[tuple[int, int, int]]:
    """(rows, inner, columns) of every dense product of one forward pass."""
    shapes: list[tuple[int, int, int]] = []

    def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(module, nn.Linear):
            shapes.append((output.numel() // module.out_features, *module.weight.T.shape))
        elif isinstance(module, nn.ConvTranspose1d):
            positions = inputs[0].numel() // module.in_channels
            shapes.append((positions, module.in_channels, module.weight[0].numel()))
        elif isinstance(module, nn.Conv1d | nn.Conv2d) and module.groups == 1:
            positions = output.numel() // module.out_channels
            shapes.append((positions, module.weight[0].numel(), module.out_channels))

    hooks = [module.register_forward_hook(record) for module in codec.modules()]
    with torch.no_grad():
        codec(mel)
    for hook in hooks:
        hook.remove()
    return shapes


def main() -> None:
    torch.manual_seed(0)
    codec = Codec(CodecConfig.small())
    mel = torch.rand(BATCH, 80, FRAMES)
    sound = BATCH * FRAMES / FRAMES_PER_SECOND

    def step() -> None:
        output = codec(mel)
        ((output.mel - mel).abs().mean() + output.quantizer_loss).backward()

    products = [
        (torch.randn(rows, inner), torch.randn(inner, columns), torch.randn(rows, columns))
        for rows, inner, columns in dense_layers(codec, mel)
    ]

    def matrices() -> None:
        for a, b, c in products:
            torch.mm(a, b)
            torch.mm(c, b.T)  # gradient of the input
            torch.mm(a.T, c)  # gradient of the weight

    training = seconds(step)
    print(f"training: {sound / training:.0f} s of sound per s ({BATCH / training:.1f} clips/s)")
    print(f"training step / its matrix products: {training / seconds(matrices):.2f}")
    codec.eval()
    with torch.no_grad():
        tokens = codec.encode(mel)
        print(f"encoding: {sound / seconds(lambda: codec.encode(mel)):.0f} s of sound per s")
        print(f"decoding: {sound / seconds(lambda: codec.decode(tokens)):.0f} s of sound per s")


if __name__ == "__main__":
    main()
