"""A bundle's networks run by onnxruntime instead of torch."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffsound.codec.codec import Codec
from diffsound.config import parse_config
from diffsound.decoder.contract import (
    Choice,
    Known,
    StepCallback,
    check_request,
    kept_parts,
    split_items,
)
from diffsound.decoder.diffsound import Diffsound
from diffsound.decoder.diffusion.draws import guide
from diffsound.decoder.sampling import Predictor, check_sampling, sample
from diffsound.decoder.settings import SamplingSettings
from diffsound.errors import BundleError, ConfigError, MissingExtraError
from diffsound.files import read_json
from diffsound.model.bundle import Bundle
from diffsound.model.onnx_export import CONFIG_FILE, FOLDER, ExportConfig, weight_sums
from diffsound.text.features import TextFeatures
from diffsound.vocoder import Vocoder


def onnx_networks(
    bundle: Bundle, folder: str | Path
) -> tuple[OnnxDiffsound, OnnxCodec, Vocoder | OnnxVocoder]:
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
    return (
        OnnxDiffsound(bundle.decoder, sessions["decoder"]),
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


class OnnxDiffsound:
    """Diffsound's generation with the denoiser in a session."""

    def __init__(self, decoder: Diffsound, session: Session) -> None:
        self.decoder = decoder
        self.session = session

    @torch.no_grad()
    def generate(
        self,
        text: TextFeatures,
        grid: tuple[int, int],
        generators: Sequence[torch.Generator],
        settings: SamplingSettings,
        *,
        negative: TextFeatures | None = None,
        known: Known | None = None,
        callback: StepCallback | None = None,
        together: int = 1,
        choice: Choice | None = None,
    ) -> Tensor:
        """Draw tokens [B, F', L'], or those of the takes chosen; see the decoders' contract."""
        decoder = self.decoder
        check_request(
            rows=decoder.rows,
            codebook_size=decoder.codebook_size,
            text_dim=decoder.text_dim,
            text=text,
            grid=grid,
            generators=generators,
            settings=settings,
            negative=negative,
            known=known,
        )
        check_sampling(decoder.config, settings, known, choice)
        predict = SessionPredictor(decoder, self.session, text, negative, settings, together)
        return sample(
            predict,
            decoder.schedule,
            decoder.windows,
            (len(text), *grid),
            generators,
            settings,
            known,
            callback,
            choice,
        )


class SessionPredictor(Predictor):
    """`predict(tokens, t) -> logits` by a session, part by part."""

    def __init__(
        self,
        decoder: Diffsound,
        session: Session,
        text: TextFeatures,
        negative: TextFeatures | None,
        settings: SamplingSettings,
        together: int,
    ) -> None:
        self.transformer = decoder.transformer
        self.guidance_scale = settings.guidance_scale
        self.guided_share = settings.guided_share
        self.device = torch.device("cpu")
        self.session = session
        self.texts = split_items(
            text,
            negative if self.guided else None,
            self.device,
            together=together,
            trim=not decoder.config.attend_padding,
        )

    def only(self, kept: Sequence[int]) -> SessionPredictor:
        """The same for some of the items alone."""
        chosen = copy.copy(self)
        parts = [items for items, _ in self.texts]
        chosen.texts = [
            (items, self.texts[place][1][texts])
            for place, items, texts in kept_parts(parts, kept, self.guided)
        ]
        return chosen

    def prepare(self, times: Iterable[int]) -> None:
        """The graph makes a time's scales and shifts itself."""

    def __call__(self, tokens: Tensor, t: int, rows: Tensor | None = None) -> Tensor:
        """tokens [B, F', L'] at time t -> logits [B, F', L', K], or of some rows [n] only."""
        guided = self.guided_at(t)
        logits = []
        for items, texts in self.texts:
            part = tokens[items]
            text = texts if guided else texts[: len(part)]
            out = self.session(
                tokens=torch.cat((part, part)) if guided else part,
                t=torch.full((len(text),), t),
                text=text.features,
                mask=text.mask,
                pooled=text.pooled,
            )
            if guided:
                toward, away = out.chunk(2)
                out = guide(toward, away, self.guidance_scale)
            logits.append(out if rows is None else out[:, rows])
        return torch.cat(logits)


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
