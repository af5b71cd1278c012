"""Decoders from the published checkpoints: their keys and shapes become our config and weights.

Sizes are read from the shapes. What shapes cannot tell (heads, truncation) are options with the
published defaults. Checkpoints come in as mappings that are already read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from diffsound.config import parse_config
from diffsound.decoder import SamplingSettings, build_decoder
from diffsound.decoder.config import ARConfig, DiffsoundConfig
from diffsound.errors import BundleError, ConfigError
from diffsound.weights import check_shapes

StateDict = dict[str, Tensor]


def diffsound_from_published(
    checkpoint: Mapping[str, Any],
    *,
    heads: int = 16,
    ema: bool | None = None,
    truncation: float = 0.85,
) -> tuple[DiffsoundConfig, StateDict, SamplingSettings]:
    """Config, weights and sampling settings of a published Diffsound checkpoint.

    ema: True takes the averaged weights, as the published inference does; False the raw ones;
        None the averaged ones if the checkpoint has them.
    """
    if ema and "model" in checkpoint and "ema" not in checkpoint:
        raise BundleError("the checkpoint has no 'ema' weights; import it with ema=False")
    weights = _unwrap(checkpoint, {True: ("ema",), False: ("model",), None: ("ema", "model")}[ema])
    source = _Source(weights, anchor="content_emb.emb.weight")
    layers = source.count("blocks.{}.ln2.weight")
    base = DiffsoundConfig.official()
    codes, up = source.shape("content_emb.emb.weight"), source.shape("blocks.0.mlp.0.weight")
    config = _config(
        DiffsoundConfig,
        base.model_dump()
        | {
            "layers": layers,
            "heads": heads,
            "width": codes[1],
            "mlp_ratio": up[0] // codes[1],
            "text_dim": source.shape("blocks.0.attn2.key.weight")[1],
            "rows": source.shape("content_emb.height_emb.weight")[0],
            "columns": source.shape("content_emb.width_emb.weight")[0],
            "codebook_size": codes[0] - 1,
            "timesteps": source.shape("blocks.0.ln1.emb.weight")[0],
        },
    )
    state: StateDict = {}
    root = "transformer"
    source.move(state, "content_emb.emb", f"{root}.codes", bias=False)
    source.move(state, "content_emb.height_emb", f"{root}.positions.row", bias=False)
    source.move(state, "content_emb.width_emb", f"{root}.positions.column", bias=False)
    for i in range(layers):
        old, new = f"blocks.{i}", f"{root}.blocks.{i}"
        for theirs, ours in (("ln1", "norm_self"), ("ln1_1", "norm_cross")):
            source.move(state, f"{old}.{theirs}.emb", f"{new}.{ours}.timestep", bias=False)
            source.move(state, f"{old}.{theirs}.linear", f"{new}.{ours}.linear")
        source.fuse(state, f"{old}.attn1", ("query", "key", "value"), f"{new}.self_attention.qkv")
        source.move(state, f"{old}.attn1.proj", f"{new}.self_attention.out")
        source.move(state, f"{old}.attn2.query", f"{new}.cross_attention.query")
        source.fuse(state, f"{old}.attn2", ("key", "value"), f"{new}.cross_attention.key_value")
        source.move(state, f"{old}.attn2.proj", f"{new}.cross_attention.out")
        source.move(state, f"{old}.ln2", f"{new}.norm_mlp")
        source.move(state, f"{old}.mlp.0", f"{new}.mlp.up")
        source.move(state, f"{old}.mlp.2", f"{new}.mlp.down")
    source.move(state, "to_logits.0", f"{root}.norm")
    source.move(state, "to_logits.1", f"{root}.logits")
    source.finish()
    # What importance sampling has learned about t, so that training can go on.
    above = source.prefix.removesuffix("transformer.")
    for theirs, ours, dtype in (
        ("Lt_history", "history", None),
        ("Lt_count", "count", torch.int64),
    ):
        learned = weights.get(above + theirs, torch.zeros(config.timesteps))
        state[f"times.{ours}"] = learned.to(dtype or torch.float32)
    _check_fit(config, state)
    return config, state, SamplingSettings(sampler="official", truncation=truncation)


def ar_from_published(
    checkpoint: Mapping[str, Any], *, heads: int = 16, rows: int = 5, top_k: int = 128
) -> tuple[ARConfig, StateDict, SamplingSettings]:
    """Config, weights and sampling settings of a published AR decoder.

    rows: F' of its grid; its flat positions only tell F'·L'.
    """
    source = _Source(_unwrap(checkpoint, ("state_dict", "model")), anchor="tok_emb.weight")
    layers = source.count("blocks.{}.ln1.weight")
    codes, up = source.shape("tok_emb.weight"), source.shape("blocks.0.mlp.0.weight")
    cells = source.shape("pos_emb")[1] - 1
    if cells % rows:
        raise BundleError(f"'pos_emb' has {cells} cells, which is no multiple of {rows} rows")
    config = _config(
        ARConfig,
        ARConfig.official().model_dump()
        | {
            "layers": layers,
            "heads": heads,
            "width": codes[1],
            "mlp_ratio": up[0] // codes[1],
            "text_dim": source.shape("embedder.weight")[1],
            "rows": rows,
            "columns": cells // rows,
            "codebook_size": codes[0],
        },
    )
    state: StateDict = {}
    root = "transformer"
    source.move(state, "tok_emb", f"{root}.codes", bias=False)
    state[f"{root}.positions.weight"] = source.take("pos_emb").squeeze(0)
    state[f"{root}.text.weight"] = source.take("embedder.weight").squeeze(-1)  # a 1-wide conv
    state[f"{root}.text.bias"] = source.take("embedder.bias")
    for i in range(layers):
        old, new = f"blocks.{i}", f"{root}.blocks.{i}"
        source.move(state, f"{old}.ln1", f"{new}.norm_attention")
        source.fuse(state, f"{old}.attn", ("query", "key", "value"), f"{new}.attention.qkv")
        source.move(state, f"{old}.attn.proj", f"{new}.attention.out")
        source.move(state, f"{old}.ln2", f"{new}.norm_mlp")
        source.move(state, f"{old}.mlp.0", f"{new}.mlp.up")
        source.move(state, f"{old}.mlp.2", f"{new}.mlp.down")
    source.move(state, "ln_f", f"{root}.norm")
    source.move(state, "head", f"{root}.logits", bias=False)
    source.finish()
    _check_fit(config, state)
    return config, state, SamplingSettings(top_k=min(top_k, codes[0]))


class _Source:
    """The decoder's own tensors in a checkpoint, taken out one by one."""

    def __init__(self, weights: Mapping[str, Any], anchor: str) -> None:
        found = [key for key in weights if key == anchor or key.endswith("." + anchor)]
        if not found:
            raise BundleError(f"the checkpoint has no key ending in '{anchor}'")
        self.prefix = found[0].removesuffix(anchor)
        # Whatever stands before the decoder in the file (codec, text encoder, schedule) is another
        # stage's; attention masks are constants.
        self.tensors: StateDict = {
            key.removeprefix(self.prefix): value.float()
            for key, value in weights.items()
            if key.startswith(self.prefix)
            and isinstance(value, Tensor)
            and not (".attn" in key and key.endswith(".mask"))
        }

    def _get(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise BundleError(f"the checkpoint has no key '{self.prefix}{name}'")
        return self.tensors[name]

    def shape(self, name: str) -> torch.Size:
        return self._get(name).shape

    def take(self, name: str) -> Tensor:
        value = self._get(name)
        del self.tensors[name]
        return value

    def count(self, pattern: str) -> int:
        """How many of pattern.format(0), pattern.format(1), … there are."""
        number = 0
        while pattern.format(number) in self.tensors:
            number += 1
        return number

    def move(self, state: StateDict, old: str, new: str, bias: bool = True) -> None:
        """A layer's weight, and its bias unless it has none."""
        state[f"{new}.weight"] = self.take(f"{old}.weight")
        if bias:
            state[f"{new}.bias"] = self.take(f"{old}.bias")

    def fuse(self, state: StateDict, old: str, parts: tuple[str, ...], new: str) -> None:
        """Several dense layers of one input as one."""
        for kind in ("weight", "bias"):
            tensors = [self.take(f"{old}.{part}.{kind}") for part in parts]
            state[f"{new}.{kind}"] = torch.cat(tensors)

    def finish(self) -> None:
        if self.tensors:
            raise BundleError(
                f"the checkpoint has a key this decoder does not know: "
                f"'{self.prefix}{next(iter(self.tensors))}'"
            )


def _unwrap(checkpoint: Mapping[str, Any], names: tuple[str, ...]) -> Mapping[str, Any]:
    """The weights inside a training checkpoint, or the mapping itself when it holds them."""
    for name in names:
        inner = checkpoint.get(name)
        if isinstance(inner, Mapping):
            return inner
    return checkpoint


def _config(kind: type[Any], values: dict[str, Any]) -> Any:
    try:
        return parse_config(kind, values, source="the checkpoint")
    except ConfigError as error:
        raise BundleError(str(error)) from error


def _check_fit(config: DiffsoundConfig | ARConfig, state: StateDict) -> None:
    """Refuse tensors whose shapes contradict the sizes read from others."""
    with torch.device("meta"):
        expected = build_decoder(config).state_dict()
    check_shapes(expected, state, "the checkpoint")
