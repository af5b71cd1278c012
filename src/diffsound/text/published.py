"""CLIP's text tower and BERT, the text encoders that the paper compares, by `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffsound.errors import ConfigError
from diffsound.text.encoders import FrozenTextEncoder, masked_mean
from diffsound.text.features import MASK

# CLIP was never shown a mask. One character of its byte alphabet is a single token of every CLIP
# vocabulary, and '*' is commonly used as a word without meaning.
CLIP_MASK = "*"


class ClipEncoder(FrozenTextEncoder):
    """CLIP's text tower: the final layer-norm's output at every position."""

    def _load(self, folder: Path) -> None:
        from transformers import CLIPTextModel, CLIPTextModelWithProjection

        self._tokenizer = _tokenizer(folder)
        projected = self.config.pooling == "projected"
        model_class = CLIPTextModelWithProjection if projected else CLIPTextModel
        self._model = _pretrained(model_class, folder).to(self.device)
        self._width = int(self._model.config.hidden_size)
        if projected and self._model.config.projection_dim != self._width:
            raise ConfigError(
                f"pool 'projected' needs a CLIP whose projection is as wide as its text tower; in "
                f"{folder} they are {self._model.config.projection_dim} and {self._width}"
            )
        self.mask_text = MASK if self.config.mask == "official" else CLIP_MASK
        self._specials = list(self._tokenizer.all_special_tokens)

    @property
    def dim(self) -> int:
        return self._width

    def _tokenise(self, text: str) -> list[int]:
        return list(self._tokenizer(text, verbose=False)["input_ids"])

    def _encode(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        # The tower is causal, so padding after the end token changes nothing before it, and no
        # mask is needed; the published code gives none either.
        output = self._model(input_ids=ids)
        features = output.last_hidden_state.float()
        if self.config.pooling == "end":
            last = mask.sum(1) - 1
            return features, features[torch.arange(len(ids), device=ids.device), last]
        return features, output.text_embeds.float()


class BertTextEncoder(FrozenTextEncoder):
    """BERT's last layer, through transformers."""

    def _load(self, folder: Path) -> None:
        from transformers import BertModel

        self._tokenizer = _tokenizer(folder)
        self._model = _pretrained(BertModel, folder, add_pooling_layer=False).to(self.device)
        self.mask_text = str(self._tokenizer.mask_token)
        self._specials = [
            token for token in self._tokenizer.all_special_tokens if token != self.mask_text
        ]

    @property
    def dim(self) -> int:
        return int(self._model.config.hidden_size)

    def _tokenise(self, text: str) -> list[int]:
        return list(self._tokenizer(text, verbose=False)["input_ids"])

    def _encode(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        features = self._model(input_ids=ids, attention_mask=mask.long()).last_hidden_state.float()
        pooled = features[:, 0] if self.config.pooling == "cls" else masked_mean(features, mask)
        return features, pooled


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def _pretrained(model_class: Any, folder: Path, **options: Any) -> Any:
    """Load frozen float32 weights; transformers' progress bar and key report are kept quiet."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        model = model_class.from_pretrained(folder, local_files_only=True, **options)
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
    return model.float().eval().requires_grad_(False)
