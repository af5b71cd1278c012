"""A bundle's networks as ONNX files beside its weights.

    my-bundle/onnx/
      decoder.onnx  codec.onnx  vocoder.onnx     any batch, any length
      export.json                                 which weights they were made from

They are for `--backend onnx`, and for programs that have no Python at all.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan  # the exporter knows it; torch has no public name yet

from diffsound.audio.mel import MelConfig
from diffsound.codec.codec import Codec
from diffsound.codec.frame_texture import UNIT, TextureNoise
from diffsound.config import Config
from diffsound.decoder.diffsound import DenoisingTransformer, Diffsound
from diffsound.errors import BundleError, InputError, MissingExtraError
from diffsound.files import atomic_write, sha256
from diffsound.model.bundle import STAGES, Bundle, FileInfo
from diffsound.vocoder.istft import QUIETEST, ISTFTVocoder
from diffsound.vocoder.melgan import MelGAN


class DecoderStep(nn.Module):
    """One evaluation of the denoiser: noisy tokens, time and text to logits of x0.

    The text's keys and values are computed again at every step; for a sentence that is a few
    percent of a step, and the graph stays one that anybody can call.
    """

    def __init__(self, decoder: Diffsound) -> None:
        super().__init__()
        transformer = copy.deepcopy(decoder.transformer)
        transformer.positions = AnyLength(transformer)
        self.transformer = transformer

    def forward(
        self, tokens: Tensor, t: Tensor, text: Tensor, mask: Tensor, pooled: Tensor
    ) -> Tensor:
        """tokens [B, F', L'], t [B] in 1..T, text [B, S, D], mask [B, S], pooled [B, D] ->
        logits [B, F', L', K]."""
        network = self.transformer
        attended = None if network.config.attend_padding else mask
        context = network.context(text, attended, pooled)
        return network(tokens, network.modulations(t, context.pooled), context)


class AnyLength(nn.Module):
    """The decoder's positions without a branch on the length, as a graph must have them.

    The first places up to the learned length, all of them interpolated beyond (`layers.stretch`).
    """

    table: Tensor

    def __init__(self, transformer: DenoisingTransformer) -> None:
        super().__init__()
        columns = transformer.config.columns
        table = transformer.positions(columns).detach()
        self.register_buffer("table", table.unflatten(0, (columns, -1)))

    def forward(self, columns: int) -> Tensor:
        """Positions of `columns` columns in sequence order."""
        last = self.table.shape[0] - 1
        index = torch.arange(columns, dtype=torch.float64)
        place = index * torch.clamp(last / index[-1].clamp_min(1), max=1.0)
        below = place.long().clamp(max=max(last - 1, 0))
        above = (below + 1).clamp(max=last)
        share = (place - below).to(self.table.dtype)[:, None, None]
        low, high = self.table[below], self.table[above]
        return (low + share * (high - low)).flatten(0, 1)


class CodecDecoder(nn.Module):
    """Tokens [B, F', L'] to mel [B, n_mels, L' * time_stride].

    A codec that draws textures takes their noise as inputs (`codec.frame_texture.TextureNoise`)
    and, if it listens to one, the pooled text [B, text_dim]. Its loop over the frames becomes one
    Scan.
    """

    def __init__(self, codec: Codec) -> None:
        super().__init__()
        self.codec = codec

    def forward(
        self,
        tokens: Tensor,
        own: Tensor | None = None,
        shared: Tensor | None = None,
        gumbel: Tensor | None = None,
        text: Tensor | None = None,
    ) -> Tensor:
        texture = self.codec.texture
        mean = self.codec.mean(tokens)
        if texture is None:
            return mean
        assert own is not None
        assert shared is not None
        assert gumbel is not None
        mean = mean.clamp(0, 1)
        rows = torch.full((tokens.shape[0],), self.codec.rows)
        each = (texture.guided(mean, rows, text), own, shared, gumbel)  # [B, L, …]

        def step(state: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
            frame = texture.next_frame(now[0], state, TextureNoise(*now[1:]))
            return texture.remember(state, frame), frame

        nothing = mean.new_zeros(mean.shape[0], texture.state_size)
        _, frames = scan(step, nothing, tuple(part.transpose(0, 1) for part in each), dim=0)
        return mean + UNIT * frames.permute(1, 2, 0)


class ISTFTNetwork(nn.Module):
    """The iSTFT vocoder with its inverse transform as one transposed convolution.

    Exchange formats have no complex numbers; an inverse real DFT, the window and overlap-add are a
    transposed convolution with windowed cosines and sines, and the DFT of its rounds a convolution.
    """

    kernel: Tensor
    square: Tensor
    analysis: Tensor

    def __init__(self, vocoder: ISTFTVocoder) -> None:
        super().__init__()
        self.vocoder = vocoder
        mel: MelConfig = vocoder.mel_config
        self.n_fft, self.hop = mel.n_fft, mel.hop_length
        window = torch.hann_window(mel.n_fft, dtype=torch.float64)
        angle = torch.outer(torch.arange(mel.bins), torch.arange(mel.n_fft)).double()
        angle *= 2 * torch.pi / mel.n_fft
        # Every bin but the first and the last stands for two of the full transform.
        weight = torch.full((mel.bins, 1), 2.0, dtype=torch.float64)
        weight[0] = weight[-1] = 1.0
        kernel = torch.cat((weight * angle.cos(), -weight * angle.sin())) / mel.n_fft * window
        self.register_buffer("kernel", kernel[:, None].float())
        self.register_buffer("square", window.square()[None, None].float())
        analysis = torch.cat((angle.cos(), -angle.sin())) * window
        self.register_buffer("analysis", analysis[:, None].float())

    def forward(self, mel: Tensor) -> Tensor:
        """Mel [B, n_mels, L] to wave [B, L * hop_length]."""
        magnitude, phase = self.vocoder.spectrum(mel)
        parts = torch.cat((magnitude * phase.cos(), magnitude * phase.sin()), dim=1)
        for _ in range(self.vocoder.config.rounds):
            real, imaginary = self._forward_transform(self._inverse(parts)).chunk(2, dim=1)
            size = (real.square() + imaginary.square()).sqrt().clamp_min(QUIETEST)
            parts = torch.cat((real * (magnitude / size), imaginary * (magnitude / size)), dim=1)
        return self._inverse(parts)

    def _inverse(self, parts: Tensor) -> Tensor:
        """Real and imaginary parts [B, 2 · bins, L] to wave [B, L * hop_length]."""
        summed = F.conv_transpose1d(parts, self.kernel, stride=self.hop)
        weight = F.conv_transpose1d(torch.ones_like(parts[:1, :1]), self.square, stride=self.hop)
        start, length = self.n_fft // 2, parts.shape[2] * self.hop
        wave, weight = (x[:, 0, start : start + length] for x in (summed, weight))
        return wave / weight

    def _forward_transform(self, wave: Tensor) -> Tensor:
        """Wave [B, L * hop_length] to the parts of its first L frames."""
        half = self.n_fft // 2
        mode = self.vocoder.mel_config.padding
        padded = F.pad(wave[:, None], (half, half), mode=mode)
        return F.conv1d(padded, self.analysis, stride=self.hop)[..., :-1]


class MelGANNetwork(nn.Module):
    """MelGAN with its weight normalisation folded away."""

    def __init__(self, vocoder: MelGAN) -> None:
        super().__init__()
        self.vocoder = copy.deepcopy(vocoder).fuse()

    def forward(self, mel: Tensor) -> Tensor:
        """Mel [B, n_mels, L] to wave [B, L * hop_length]."""
        return self.vocoder(mel)


FOLDER = "onnx"
CONFIG_FILE = "export.json"
OPSET = 18
# Lengths from 8 on are one graph: MelGAN's reflections need a few frames to reflect.
_MIN_COLUMNS, _MAX_COLUMNS = 8, 100_000


class ExportConfig(Config):
    """`export.json`.

    weights: checksum of each stage's weights as they were when it was exported.
    """

    format_version: int = 1
    int8: bool
    opset: int
    weights: dict[str, str]
    files: dict[str, FileInfo]


def export_onnx(bundle: Bundle, folder: str | Path, *, int8: bool = False) -> Path:
    """Write the ONNX files of a bundle into `folder`/onnx, where its own files are.

    int8: the decoder's dense layers with int8 weights, and activations quantised on the fly; its
    output head, where tokens are decided, and the other stages stay in float32.
    """
    require_onnx()
    networks, weights = _networks(bundle), weight_sums(bundle)
    target = Path(folder) / FOLDER
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BundleError(f"cannot make the folder {target}: {error.strerror}") from error
    # A half-done export must not look whole, nor an old one current.
    (target / CONFIG_FILE).unlink(missing_ok=True)
    files = {}
    for stage in STAGES:
        path = target / f"{stage}.onnx"
        path.unlink(missing_ok=True)
        if stage not in networks:
            continue
        network, inputs, dynamic = networks[stage]
        with atomic_write(path) as temporary:
            export_network(network, inputs, dynamic, temporary)
            if int8 and stage == "decoder":
                quantize(temporary)
        files[path.name] = FileInfo(bytes=path.stat().st_size, sha256=sha256(path))
    config = ExportConfig(int8=int8, opset=OPSET, weights=weights, files=files)
    with atomic_write(target / CONFIG_FILE) as temporary:
        temporary.write_text(config.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return target


def weight_sums(bundle: Bundle) -> dict[str, str]:
    """The checksums of the weights a bundle was loaded from."""
    files = bundle.config.files
    missing = [stage for stage in STAGES if f"{stage}.safetensors" not in files]
    if missing:
        raise BundleError(
            f"'{bundle.config.name}' was never saved, its {missing[0]} has no checksum; "
            "save the bundle first"
        )
    return {stage: files[f"{stage}.safetensors"].sha256 for stage in STAGES}


def require_onnx() -> None:
    """Say which extra is missing, rather than failing deep inside an exporter."""
    for package in ("onnx", "onnxruntime", "onnxscript"):
        try:
            __import__(package)
        except ImportError as error:
            raise MissingExtraError(package, "onnx") from error


Exportable = tuple[nn.Module, dict[str, Tensor], dict[str, Any]]


def _networks(bundle: Bundle) -> dict[str, Exportable]:
    """What to export: the network, an example of its inputs, which axes are free."""
    decoder, codec, vocoder = bundle.decoder, bundle.codec, bundle.vocoder
    if not isinstance(decoder, Diffsound):
        raise InputError(
            "only diffusion decoders can be exported: the AR decoder runs one small step per "
            "token, in which a runtime has nothing to gain"
        )
    # Two of everything: an axis of one would be taken for a constant.
    batch, columns, words = 2, max(_MIN_COLUMNS, decoder.config.columns), 5
    free = torch.export.Dim("batch"), torch.export.Dim("text", max=4096)
    length = torch.export.Dim("columns", min=_MIN_COLUMNS, max=_MAX_COLUMNS)
    tokens = torch.zeros(batch, codec.rows, columns, dtype=torch.long)
    networks: dict[str, Exportable] = {
        "decoder": (
            DecoderStep(decoder),
            {
                "tokens": tokens,
                "t": torch.ones(batch, dtype=torch.long),
                "text": torch.zeros(batch, words, decoder.text_dim),
                "mask": torch.ones(batch, words, dtype=torch.bool),
                "pooled": torch.zeros(batch, decoder.text_dim),
            },
            {
                "tokens": {0: free[0], 2: length},
                "t": {0: free[0]},
                "text": {0: free[0], 1: free[1]},
                "mask": {0: free[0], 1: free[1]},
                "pooled": {0: free[0]},
            },
        ),
        "codec": (CodecDecoder(codec), {"tokens": tokens}, {"tokens": {0: free[0], 2: length}}),
    }
    if codec.texture is not None:
        noise = codec.texture.noise(columns * codec.time_stride)._asdict()
        free_axes = {0: free[0], 1: codec.time_stride * length}
        networks["codec"][1].update({k: v.repeat(batch, 1, 1) for k, v in noise.items()})
        networks["codec"][2].update(dict.fromkeys(noise, free_axes))
        if codec.texture.config.text_dim is not None:
            networks["codec"][1]["text"] = torch.zeros(batch, codec.texture.config.text_dim)
            networks["codec"][2]["text"] = {0: free[0]}
    frames = torch.export.Dim("frames", min=_MIN_COLUMNS, max=_MAX_COLUMNS)
    mel = {"mel": torch.zeros(batch, codec.n_mels, 64)}
    if isinstance(vocoder, ISTFTVocoder):
        networks["vocoder"] = ISTFTNetwork(vocoder), mel, {"mel": {0: free[0], 2: frames}}
    elif isinstance(vocoder, MelGAN):
        networks["vocoder"] = MelGANNetwork(vocoder), mel, {"mel": {0: free[0], 2: frames}}
    # Griffin-Lim is no network: it stays in torch.
    return networks


_OUTPUTS = {DecoderStep: "logits", CodecDecoder: "mel"}


def export_network(
    network: nn.Module, inputs: Mapping[str, Tensor], dynamic: dict[str, Any], path: Path
) -> None:
    """Write one network; `dynamic` names the free axes of its inputs."""
    # The exporter reports its progress on stdout and its doubts as warnings.
    talk = logging.getLogger("torch.onnx")
    level = talk.level
    talk.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            torch.onnx.export(
                network.eval(),
                kwargs=dict(inputs),
                f=path,
                input_names=list(inputs),
                output_names=[_OUTPUTS.get(type(network), "wave")],
                dynamic_shapes=dynamic,
                opset_version=OPSET,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    finally:
        talk.setLevel(level)


def quantize(path: Path) -> None:
    """Make the dense layers of the decoder int8, in place."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(path)
    # The shapes noted by the exporter are wrong for the weights that the quantiser transposes.
    del model.graph.value_info[:]
    quantized = path.with_name(path.name + ".int8")
    logging.disable(logging.WARNING)  # it advises a pre-processing that changes nothing here
    try:
        quantize_dynamic(
            model,
            quantized,
            op_types_to_quantize=["MatMul", "Gemm"],
            nodes_to_exclude=_head(model),
            per_channel=True,
            # Seven bits: CPUs without VNNI add pairs of products in 16 bits, which would saturate.
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )
        quantized.replace(path)
    finally:
        logging.disable(logging.NOTSET)
        quantized.unlink(missing_ok=True)


def _head(model: Any) -> list[str]:
    """The products between the last layer norm and the logits."""
    nodes = list(model.graph.node)
    last = max(i for i, node in enumerate(nodes) if node.op_type == "LayerNormalization")
    return [node.name for node in nodes[last:] if node.op_type in ("MatMul", "Gemm")]
