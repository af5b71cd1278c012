"""BERT's encoder (Devlin et al., 2019), just enough to run MiniLM.

The default text encoder uses this module instead of `transformers`, whose import alone takes longer
than the rest of a cold start. A test checks that it equals transformers' BertModel.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import embedding, gelu, scaled_dot_product_attention

from diffsound.files import read_json

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
    """Token ids to one vector per token."""

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
