"""A bundle's networks run by onnxruntime instead of torch."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffsound.codec.codec import Codec
from diffsound.config import parse_config
from diffsound.decoder.diffsound import DenoisingTransformer, Diffsound, Predictor
from diffsound.decoder.sampling import TokenRequest
from diffsound.errors import BundleError, ConfigError, MissingExtraError
from diffsound.files import read_json
from diffsound.model.bundle import Bundle
from diffsound.model.onnx_export import CONFIG_FILE, FOLDER, ExportConfig, weight_sums
from diffsound.text.features import TextFeatures
from diffsound.vocoder import Vocoder


def onnx_networks(
    bundle: Bundle, folder: str | Path
) -> tuple[Diffsound, OnnxCodec, Vocoder | OnnxVocoder]:
    """The decoder, codec and vocoder of a bundle as its exported files run them; `folder` is the
    bundle's own.

    Sessions use as many cores as torch does in the calling thread now.
    """
    export = Path(folder) / FOLDER
    config = _read_config(export)
    for stage, checksum in weight_sums(bundle).items():
        if config.weights.get(stage) != checksum:
            raise BundleError(
                f"{export} was exported from other {stage} weights than the bundle has now; "
                f"export it again: diffsound bundle export {folder} --onnx"
            )
    sessions = {Path(name).stem: Session(export / name) for name in config.files}
    if not isinstance(bundle.decoder, Diffsound):
        raise BundleError(f"{export} is no export of an AR decoder")
    decoder = copy.copy(bundle.decoder)
    decoder.predictor = partial(SessionPredictor, sessions["decoder"])
    return (
        decoder,
        OnnxCodec(bundle.codec, sessions["codec"]),
        OnnxVocoder(sessions["vocoder"]) if "vocoder" in sessions else bundle.vocoder,
    )


class Session:
    """An ONNX file, loaded: tensors in by name, its one output out."""

    def __init__(self, path: Path) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise MissingExtraError("onnxruntime", "onnx") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors only
        try:
            self._session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        # onnxruntime raises a dozen classes of its own for a damaged file.
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise BundleError(f"{path} cannot be loaded: {reason}") from error
        self._inputs = {given.name for given in self._session.get_inputs()}

    def __call__(self, **inputs: Tensor) -> Tensor:
        # The exporter leaves out inputs that a network does not use.
        arrays = {name: x.numpy() for name, x in inputs.items() if name in self._inputs}
        return torch.from_numpy(self._session.run(None, arrays)[0])


class OnnxCodec:
    """The codec's decoder in a session."""

    def __init__(self, codec: Codec, session: Session) -> None:
        self.codec = codec
        self.session = session

    def decode(
        self,
        tokens: Tensor,
        generator: torch.Generator | None = None,
        text: Tensor | None = None,
    ) -> Tensor:
        """tokens [B, F', L'], pooled text [B, text_dim] -> mel [B, n_mels, L]."""
        if self.codec.texture is None:
            return self.session(tokens=tokens)
        if text is None:
            text = torch.zeros(len(tokens), self.codec.texture.config.text_dim or 1)
        length = tokens.shape[2] * self.codec.time_stride
        noises = [self.codec.texture.noise(length, generator) for _ in tokens]
        own, shared, gumbel = (torch.stack(parts) for parts in zip(*noises, strict=True))
        return self.session(tokens=tokens, own=own, shared=shared, gumbel=gumbel, text=text)


class OnnxVocoder:
    """The vocoder in a session."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def __call__(self, mel: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """mel [B, n_mels, L] -> wave [B, samples]."""
        return self.session(mel=mel)


class SessionPredictor(Predictor):
    """The decoder's network in a session. Each part holds its texts as they are, since the graph
    computes their keys and values, and a time's scales and shifts, itself."""

    def __init__(
        self, session: Session, transformer: DenoisingTransformer, request: TokenRequest
    ) -> None:
        self.session = session
        super().__init__(transformer, request)

    def _read(self, texts: Sequence[tuple[slice, TextFeatures]]) -> None:
        self.parts: list[Any] = list(texts)

    def prepare(self, times: Iterable[int]) -> None:
        self.modulations = [()] * len(self.parts)

    def _logits(self, tokens: Tensor, t: int, place: int, rows: Tensor | None) -> Tensor:
        text = self.parts[place][1][: len(tokens)]
        logits = self.session(
            tokens=tokens,
            t=torch.full((len(text),), t),
            text=text.features,
            mask=text.mask,
            pooled=text.pooled,
        )
        return logits if rows is None else logits[:, rows]


def _read_config(export: Path) -> ExportConfig:
    path = export / CONFIG_FILE
    try:
        data: Any = read_json(path)
        config = parse_config(ExportConfig, data, source=str(path))
    except FileNotFoundError:
        raise BundleError(
            f"there is no {path}; export the bundle first: "
            f"diffsound bundle export {export.parent} --onnx"
        ) from None
    except (OSError, ValueError, ConfigError) as error:
        raise BundleError(f"{path} cannot be read: {error}") from error
    for name, info in config.files.items():
        if not (export / name).is_file() or (export / name).stat().st_size != info.bytes:
            raise BundleError(f"{export / name} is missing or cut short; export the bundle again")
    return config
