"""Published checkpoints into a bundle: the decoder, the VQ-VAE and the MelGAN, with their numbers.

Sizes come from the tensors' shapes; what shapes cannot tell (heads, rows, truncation) are options
with the published values as defaults.

Files are read as tensors and plain containers; no code in them runs. Files that name any other
class are refused by `torch.load(weights_only=True)`, as are those of Lightning 1.2 (whose
`callbacks` are keyed by class). Here such a class becomes an inert placeholder, a type of ours that
takes any arguments and does nothing, and is dropped: `find_class` imports and looks up nothing.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffsound.audio.mel import MelConfig
from diffsound.codec.codec import Codec
from diffsound.codec.importing import codec_from_published
from diffsound.decoder import build_decoder
from diffsound.decoder.ar import ARDecoder
from diffsound.decoder.config import ARConfig, DiffsoundConfig
from diffsound.decoder.diffsound import Diffsound
from diffsound.decoder.importing import ar_from_published, diffsound_from_published
from diffsound.errors import BundleError
from diffsound.generation.settings import GenerationDefaults
from diffsound.model.bundle import Bundle, BundleConfig, CodecPart, DecoderPart, VocoderPart
from diffsound.text.features import TextEncoderConfig
from diffsound.vocoder import GriffinLimConfig, Vocoder, VocoderConfig, build_vocoder
from diffsound.vocoder.melgan import melgan_from_published
from diffsound.weights import load_into

PUBLISHED_CLIP = "openai/clip-vit-base-patch32"


def import_published(
    decoder: str | Path,
    *,
    codec: str | Path | None = None,
    vocoder: str | Path | None = None,
    text_encoder: str | Path | None = None,
    name: str = "published",
    heads: int = 16,
    rows: int = 5,
    ema: bool | None = None,
    truncation: float = 0.85,
) -> Bundle:
    """A bundle from published files.

    decoder: a Diffsound or an autoregressive checkpoint (told apart by their keys).
    codec: the VQ-VAE's own file; None takes the VQ-VAE inside the decoder's file.
    vocoder: the MelGAN's file; None takes Griffin-Lim.
    text_encoder: a CLIP folder or hub id; None means the published ViT-B/32.
    ema: Diffsound's averaged weights (True), its raw ones (False), or the averaged ones if the
        file has them (None).
    """
    checkpoint = read_checkpoint(decoder)
    mel = MelConfig()
    loaded_decoder, defaults = _decoder(checkpoint, heads, rows, ema, truncation)
    of_codec = checkpoint if codec is None else read_checkpoint(codec)
    codec_config, codec_state = codec_from_published(_weights(of_codec), mel.n_mels)
    loaded_codec = Codec(codec_config)
    load_into(loaded_codec, codec_state, str(codec or decoder))
    vocoder_config, loaded_vocoder = _vocoder(vocoder, mel)
    columns = loaded_decoder.config.columns
    seconds = columns * codec_config.time_stride * mel.hop_length / mel.sample_rate
    config = BundleConfig(
        name=name,
        text_encoder=_text_encoder(loaded_decoder.config, text_encoder),
        codec=CodecPart(model=codec_config, mel=mel),
        decoder=DecoderPart(model=loaded_decoder.config),
        vocoder=VocoderPart(model=vocoder_config, mel=mel),
        defaults=defaults.model_copy(update={"duration": min(max(seconds, 0.5), 30.0)}),
    )
    card = (
        f"# {name}\n\nImported from published checkpoints: {Path(decoder).name}"
        + "".join(f", {Path(path).name}" for path in (codec, vocoder) if path)
        + ".\nTheir authors' terms apply to these weights.\n"
    )
    return Bundle(
        config=config,
        codec=loaded_codec,
        decoder=loaded_decoder,
        vocoder=loaded_vocoder,
        card=card,
    )


def _weights(checkpoint: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tensors of a training checkpoint, or of a plain state dict."""
    inner = (checkpoint.get(key) for key in ("state_dict", "model"))
    found = next((value for value in inner if isinstance(value, Mapping)), checkpoint)
    return {key: value for key, value in found.items() if isinstance(value, torch.Tensor)}


def _decoder(
    checkpoint: Mapping[str, Any], heads: int, rows: int, ema: bool | None, truncation: float
) -> tuple[Diffsound | ARDecoder, GenerationDefaults]:
    autoregressive = any(key.endswith("tok_emb.weight") for key in _weights(checkpoint))
    config: DiffsoundConfig | ARConfig
    if autoregressive:
        config, state, settings = ar_from_published(checkpoint, heads=heads, rows=rows)
    else:
        config, state, settings = diffsound_from_published(
            checkpoint, heads=heads, ema=ema, truncation=truncation
        )
    model = build_decoder(config)
    load_into(model, state, "the decoder's checkpoint")
    names = GenerationDefaults.model_fields.keys() & vars(settings).keys()
    return model, GenerationDefaults(**{name: getattr(settings, name) for name in names})


def _vocoder(path: str | Path | None, mel: MelConfig) -> tuple[VocoderConfig, Vocoder]:
    if path is None:
        config: VocoderConfig = GriffinLimConfig()
        return config, build_vocoder(config, mel)
    config, state = melgan_from_published(_weights(read_checkpoint(path)), mel)
    model = build_vocoder(config, mel)
    load_into(model, state, str(path))
    return config, model


def _text_encoder(
    decoder: DiffsoundConfig | ARConfig, source: str | Path | None
) -> TextEncoderConfig:
    name = str(source or PUBLISHED_CLIP)
    if isinstance(decoder, DiffsoundConfig):
        return TextEncoderConfig.official_clip(name)
    return TextEncoderConfig(kind="clip", name=name, pool="projected", mask="official")


_STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
# What a hostile or broken pickle can raise; pickle's documentation gives no closed list.
_BROKEN = (
    *(pickle.UnpicklingError, zipfile.BadZipFile, EOFError, OSError, RuntimeError, ValueError),
    *(AttributeError, ImportError, IndexError, KeyError, TypeError, AssertionError, MemoryError),
)


def read_checkpoint(path: str | Path) -> Mapping[str, Any]:
    """The content of a torch file: tensors, plain values, and containers of them by name."""
    path = Path(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise BundleError(f"there is no checkpoint at {path}") from None
    except _BROKEN as refused:
        try:
            content = read_inert(path)
        except _BROKEN as error:
            reason = str(error) or str(refused) or type(error).__name__
            raise BundleError(
                f"{path} is not a checkpoint that can be read ({reason.splitlines()[0]}); "
                "save its state dict alone with torch.save and import that"
            ) from error
    if not isinstance(content, Mapping):
        raise BundleError(f"{path} holds a {type(content).__name__}, not a checkpoint")
    return content


def read_inert(path: Path) -> Any:
    """The content of a file written by torch.save since 1.6, a zip of one pickle and raw data."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(names) != 1:
            raise ValueError("it is not a file of torch.save")
        folder = names[0].removesuffix("data.pkl")
        if f"{folder}byteorder" in archive.namelist():
            order = archive.read(f"{folder}byteorder")
            if order != b"little":
                raise ValueError(f"its byte order is {order.decode('ascii', 'replace')}")
        with archive.open(names[0]) as stream:
            return _plain(_InertUnpickler(stream, archive, folder).load())


def _plain(value: Any) -> Any:
    """Without placeholders, and without entries that a placeholder or another object names."""
    if isinstance(value, Mapping):
        kept = {key: _plain(inner) for key, inner in value.items() if isinstance(key, str)}
        return {key: inner for key, inner in kept.items() if not _is_inert(inner)}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value if not _is_inert(inner)]
    return value


def _is_inert(value: Any) -> bool:
    return isinstance(value, _Inert | type)


class _Inert:
    """Takes the place of an object that is not read. Accepts all that a pickle does to one."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    def __call__(self, *arguments: Any, **named: Any) -> _Inert:
        return self

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        pass

    def extend(self, values: Any) -> None:
        pass

    def add(self, value: Any) -> None:
        pass


class _Dict(dict[Any, Any]):
    """An OrderedDict of the file, without the attributes that pickles may set on one."""

    def __setstate__(self, state: Any) -> None:
        pass


class _StorageType(_Inert):
    """Names the type of a storage's numbers."""

    dtype: torch.dtype


class _RebuiltTensor(_Inert):
    """Our own `torch._utils._rebuild_tensor_v2`."""

    def __new__(cls, data: Tensor, offset: int, size: Any, stride: Any, *rest: Any) -> Any:
        return torch.as_strided(data, size, stride, offset)  # which checks the bounds


class _RebuiltParameter(_Inert):
    """Our own `torch._utils._rebuild_parameter`: the tensor alone."""

    def __new__(cls, data: Tensor, *rest: Any) -> Any:
        return data


class _InertUnpickler(pickle.Unpickler):
    def __init__(self, stream: Any, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(stream)
        self._archive, self._folder = archive, folder
        self._types: dict[str, type] = {
            "collections.OrderedDict": _Dict,
            "torch._utils._rebuild_tensor_v2": _RebuiltTensor,
            "torch._utils._rebuild_parameter": _RebuiltParameter,
        }
        for name, dtype in _STORAGES.items():
            self._types[f"torch.{name}"] = type(name, (_StorageType,), {"dtype": dtype})
        self._storages: dict[str, Tensor] = {}

    def find_class(self, module: str, name: str) -> type:
        """Ours, whatever the file asks for; each name is one type, so it can be a key."""
        full = f"{module}.{name}"
        if full not in self._types:
            self._types[full] = type("Unread", (_Inert,), {"__doc__": full})
        return self._types[full]

    def persistent_load(self, pid: Any) -> Tensor:
        """The numbers of a storage, flat."""
        _, kind, key, _, count = pid
        if not (isinstance(kind, type) and issubclass(kind, _StorageType)):
            raise TypeError("a tensor of it has a type that is not read")
        if key not in self._storages:
            self._storages[key] = self._numbers(f"{self._folder}data/{key}", kind.dtype, count)
        return self._storages[key]

    def _numbers(self, name: str, dtype: torch.dtype, count: int) -> Tensor:
        entry = self._archive.getinfo(name)
        # torch.save never compresses; a compressed entry could be a thousand times its size.
        if entry.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{name} is compressed")
        raw = bytearray(self._archive.read(entry))
        if len(raw) != count * dtype.itemsize:
            raise ValueError(f"{name} has {len(raw)} bytes instead of {count * dtype.itemsize}")
        return torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
