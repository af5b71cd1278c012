"""The autoregressive token decoder (section III-C): its network, loss and cached generation.

The network reads a prefix of text, then steps of tokens, each predicting the next. A step is one
cell (the paper) or, with `position: column`, one delayed column (`layers.delay`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from diffsound.decoder import layers as grids
from diffsound.decoder.config import ARConfig
from diffsound.decoder.diffusion.process import uniforms
from diffsound.decoder.diffusion.samplers import draw_categorical, filter_logits, guide
from diffsound.decoder.layers import (
    CellPositions,
    ColumnEmbedding,
    ColumnLogits,
    ColumnPositions,
    FeedForward,
    SelfAttention,
    init_weights,
    merge_heads,
    stretch,
)
from diffsound.decoder.sampling import (
    DEFAULT_SAMPLING,
    DecoderLoss,
    TokenDecoder,
    TokenRequest,
    split_items,
)
from diffsound.errors import InputError
from diffsound.text.features import TextFeatures
from diffsound.threads import torch_threads


class LayerCache:
    """Keys and values of one block, [B, H, capacity, d], allocated once and filled in place."""

    def __init__(self, shape: tuple[int, int, int, int], like: Tensor) -> None:
        self.keys = like.new_empty(shape)
        self.values = like.new_empty(shape)
        self.length = 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add n places and return all there are, [B, H, length, d]."""
        end = self.length + keys.shape[2]
        self.keys[:, :, self.length : end] = keys
        self.values[:, :, self.length : end] = values
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]


class CausalBlock(nn.Module):
    """Pre-norm causal self-attention and feed-forward."""

    def __init__(self, config: ARConfig) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(config.width)
        self.attention = SelfAttention(config.width, config.heads)
        self.norm_mlp = nn.LayerNorm(config.width)
        self.mlp = FeedForward(config.width, config.mlp_ratio, config.activation)
        self.dropout = config.dropout

    def forward(self, x: Tensor, mask: Tensor | None, cache: LayerCache | None = None) -> Tensor:
        """x [B, n, W]; mask bool over keys, or None for a plain causal pass."""
        normed = self.norm_attention(x)
        if cache is None:
            attended = self.attention(normed, mask, causal=mask is None)
        else:
            q, k, v = self.attention.project(normed)
            k, v = cache.append(k, v)
            # A single new place may attend to all there is; several only come first, together.
            causal = mask is None and x.shape[1] > 1
            attended = self.attention.out(
                merge_heads(
                    F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
                )
            )
        x = x + F.dropout(attended, self.dropout, self.training)
        return x + F.dropout(self.mlp(self.norm_mlp(x)), self.dropout, self.training)


class SequencePositions(nn.Embedding):
    """The published positions: one vector per place of the sequence, the condition's first."""

    def __init__(self, rows: int, columns: int, width: int) -> None:
        super().__init__(1 + rows * columns, width)
        self.rows = rows

    def forward(self, columns: int) -> Tensor:  # type: ignore[override]
        """Positions of the cells of a grid of `columns` columns: [columns * F', W]."""
        table = self.weight[1:].unflatten(0, (-1, self.rows))
        return stretch(table, columns).flatten(0, 1)


class CausalTransformer(nn.Module):
    """Text prefix and steps of tokens -> logits of the step after each."""

    def __init__(self, config: ARConfig) -> None:
        super().__init__()
        self.config = config
        # Trades a second forward pass for the activations' memory in training.
        self.gradient_checkpointing = False
        width, size = config.width, config.codebook_size
        self.text = nn.Linear(config.text_dim, width)
        # With one vector per text token the first prediction needs a place of its own, the same
        # for every length of text.
        self.start = nn.Embedding(1, width) if config.condition == "tokens" else None
        self.codes: nn.Module
        self.logits: nn.Module
        self.positions: nn.Module
        if config.position == "column":
            self.codes = ColumnEmbedding(config.rows, size + 1, width, config.code_width)
            self.positions = ColumnPositions(config.columns + config.rows - 1, width)
            self.logits = ColumnLogits(config.rows, size, width, config.code_width)
        else:
            self.codes = nn.Embedding(size, width)
            self.positions = (
                SequencePositions(config.rows, config.columns, width)
                if config.position_scheme == "official"
                else CellPositions(config.rows, config.columns, width)
            )
            self.logits = nn.Linear(width, size, bias=False)
        self.blocks = nn.ModuleList(CausalBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.apply(init_weights)

    def to_steps(self, grid: Tensor, blank: int | bool) -> Tensor:
        """[B, F', L'] -> [B, steps, cells in a step], places without a cell holding `blank`."""
        if self.config.position == "column":
            return grids.delay(grid, blank)
        return grids.flatten(grid).unsqueeze(-1)

    def from_steps(self, steps: Tensor) -> Tensor:
        """The inverse of `to_steps`."""
        if self.config.position == "column":
            return grids.undelay(steps)
        return grids.unflatten(steps.squeeze(-1), self.config.rows)

    def prefix(self, text: TextFeatures) -> tuple[Tensor, Tensor]:
        """The text in front of the sequence: vectors [B, P, W] and mask [B, P]."""
        if self.config.condition == "pooled":
            vector = text.pooled
            if self.config.normalise_text:
                vector = F.normalize(vector, dim=-1)
            prefix = self.text(vector)[:, None]
            if isinstance(self.positions, SequencePositions):
                prefix = prefix + self.positions.weight[0]
            return prefix, text.mask.new_ones(len(text), 1)
        features = text.features
        if self.config.normalise_text:
            features = F.normalize(features, dim=-1)
        assert self.start is not None
        start = self.start.weight.expand(len(text), 1, -1)
        vectors = self.text(features)
        prefix = torch.cat((vectors, start.to(vectors.dtype)), dim=1)
        return prefix, F.pad(text.mask, (0, 1), value=True)

    def step_positions(self, columns: int) -> Tensor:
        """Positions of all steps of a grid of `columns` columns: [steps, W]."""
        if self.config.position == "column":
            return self.positions(columns + self.config.rows - 1)
        return self.positions(columns)

    def embed(self, steps: Tensor, positions: Tensor) -> Tensor:
        """steps [B, n, cells] and their positions [n, W] -> [B, n, W]."""
        codes = steps if self.config.position == "column" else steps.squeeze(-1)
        return self.codes(codes) + positions

    def forward(self, prefix: Tensor, prefix_mask: Tensor, steps: Tensor) -> Tensor:
        """Logits after the prefix and after each step: [B, n + 1, cells, K].

        prefix [B, P, W]; prefix_mask bool [B, P]; steps [B, n, W], embedded.
        """
        x = torch.cat((prefix, steps), dim=1)
        mask = causal_mask(prefix_mask, x.shape[1])
        for block in self.blocks:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(block, x, mask, use_reentrant=False)
            else:
                x = block(x, mask)
        return self.read(x[:, prefix.shape[1] - 1 :])

    def advance(self, x: Tensor, mask: Tensor | None, caches: list[LayerCache]) -> Tensor:
        """Append x [B, n, W] to the caches; logits after its last place, [B, cells, K]."""
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, mask, cache)
        return self.read(x[:, -1:])[:, 0]

    def read(self, x: Tensor) -> Tensor:
        """x [B, n, W] -> logits [B, n, cells, K]."""
        logits = self.logits(self.norm(x))
        return logits if self.config.position == "column" else logits.unsqueeze(2)


def causal_mask(prefix_mask: Tensor, length: int) -> Tensor | None:
    """Bool [B, 1, length, length]: earlier places that are no padding; None when none is padded."""
    if bool(prefix_mask.all()):
        return None
    real = F.pad(prefix_mask, (0, length - prefix_mask.shape[1]), value=True)
    earlier = torch.ones(length, length, dtype=torch.bool, device=real.device).tril()
    return real[:, None, None, :] & earlier


class ARDecoder(TokenDecoder):
    """Text to tokens one step after the other.

    use_cache: False recomputes the whole prefix at every step, as the published code does.
    """

    chooses_early = False

    def __init__(self, config: ARConfig) -> None:
        super().__init__(config)
        self.config = config
        self.use_cache = True
        self.transformer = CausalTransformer(config)

    def forward(self, tokens: Tensor, text: TextFeatures) -> Tensor:
        """Teacher-forced logits [B, F', L', K] of tokens [B, F', L']."""
        model = self.transformer
        steps = model.to_steps(tokens, blank=self.codebook_size)[:, :-1]
        positions = model.step_positions(tokens.shape[-1])[: steps.shape[1]]
        prefix, mask = model.prefix(text)
        logits = model(prefix, mask, model.embed(steps, positions))
        # from_steps wants [..., steps, cells], so the codes go in front of them and back.
        return model.from_steps(logits.movedim(-1, 1)).movedim(1, -1)

    def loss(
        self, tokens: Tensor, text: TextFeatures, generator: torch.Generator | None = None
    ) -> DecoderLoss:
        """Teacher-forced cross-entropy of tokens [B, F', L'], in nats per token."""
        logits = self(tokens, text)
        nll = F.cross_entropy(logits.movedim(-1, 1).float(), tokens, reduction="none")
        per_item = nll.flatten(1).mean(1)
        return DecoderLoss(per_item.mean(), per_item.detach())

    def _check(self, request: TokenRequest) -> None:
        """Refuse what only a diffusion decoder can do."""
        settings, known = request.settings, request.known
        if request.choice is not None:
            raise InputError("the AR decoder has nothing to compare before its takes are finished")
        if settings.sampler != DEFAULT_SAMPLING.sampler:
            raise InputError(f"the AR decoder has no samplers: leave out '{settings.sampler}'")
        if settings.remask:
            raise InputError("the AR decoder cannot remask: it draws every token once")
        if settings.num_inference_steps is not None or settings.stride is not None:
            raise InputError(
                "the AR decoder takes one step per token: leave out num_inference_steps and stride"
            )
        if known is not None and known.start_step is not None:
            raise InputError(
                "the AR decoder cannot vary a clip: start_step needs a diffusion decoder"
            )

    def _draw(self, request: TokenRequest) -> Tensor:
        """Known cells are forced as they come up: they shape what follows, not what came before."""
        settings, known, callback = request.settings, request.known, request.callback
        model, blank = self.transformer, self.codebook_size
        device = next(self.parameters()).device
        keep = torch.zeros(request.shape, dtype=torch.bool, device=device)
        drawn = torch.full(request.shape, blank, device=device)
        if known is not None:
            keep = known.keep.to(device)
            drawn = torch.where(keep, known.tokens.to(device), drawn)
        steps = model.to_steps(drawn, blank=blank)
        fixed = model.to_steps(keep, blank=True)
        noise = uniforms(request.generators, tuple(steps.shape), device)
        streams = [
            (items, _Stream(model, texts, request.grid[1], self.use_cache))
            for items, texts in split_items(request, device)
        ]
        for step in range(steps.shape[1]):
            for items, stream in streams:
                logits = stream.next_logits()
                if request.guided:
                    toward, away = logits.chunk(2)
                    logits = guide(toward, away, settings.guidance_scale)
                probs = filter_logits(
                    logits,
                    temperature=settings.temperature,
                    top_k=settings.top_k,
                    truncation=settings.truncation,
                )
                drawn = draw_categorical(probs, noise[items, step])
                chosen = torch.where(fixed[items, step], steps[items, step], drawn)
                steps[items, step] = chosen
                stream.append(torch.cat((chosen, chosen)) if request.guided else chosen)
            if callback is not None:
                callback(step + 1, steps.shape[1], model.from_steps(steps))
        return model.from_steps(steps).contiguous()


class _Stream:
    """A sequence being written: the text prefix, then one step after the other."""

    def __init__(
        self, model: CausalTransformer, text: TextFeatures, columns: int, use_cache: bool
    ) -> None:
        self.model = model
        self.prefix, self.mask = model.prefix(text)
        self.positions = model.step_positions(columns)
        self.steps: list[Tensor] = []  # embedded, each [R, 1, W]
        config = model.config
        capacity = self.prefix.shape[1] + len(self.positions)
        shape = (len(text), config.heads, capacity, config.width // config.heads)
        self.caches = [LayerCache(shape, self.prefix) for _ in model.blocks] if use_cache else None
        # For single new places: which of the cached keys are real.
        padded = not bool(self.mask.all())
        self.real = F.pad(self.mask, (0, len(self.positions)), value=True) if padded else None

    def append(self, step: Tensor) -> None:
        """Add a step [R, cells]."""
        place = len(self.steps)
        self.steps.append(self.model.embed(step[:, None], self.positions[place : place + 1]))

    def next_logits(self) -> Tensor:
        """Logits of the step after the last one, [R, cells, K]."""
        if self.caches is None:
            written = torch.cat((self.prefix[:, :0], *self.steps), dim=1)
            return self.model(self.prefix, self.mask, written)[:, -1]
        if not self.steps:
            mask = causal_mask(self.mask, self.prefix.shape[1])
            with torch_threads(1):
                return self.model.advance(self.prefix, mask, self.caches)
        length = self.prefix.shape[1] + len(self.steps)
        mask = None if self.real is None else self.real[:, None, None, :length]
        return self.model.advance(self.steps[-1], mask, self.caches)
