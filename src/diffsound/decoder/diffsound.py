"""Diffsound, the discrete-diffusion token decoder (section IV): network, loss and generation."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from diffsound.decoder.config import DiffsoundConfig
from diffsound.decoder.diffusion.process import (
    Schedule,
    Time,
    in_turn,
    linear_schedule,
    quarter_schedule,
    row_times,
    sample_xt,
)
from diffsound.decoder.diffusion.samplers import guide
from diffsound.decoder.layers import (
    AdaptiveNorm,
    CellPositions,
    ColumnEmbedding,
    ColumnLogits,
    ColumnPositions,
    CrossAttention,
    FeedForward,
    SelfAttention,
    by_column,
    flatten,
    init_weights,
)
from diffsound.decoder.sampling import (
    DecoderLoss,
    TokenDecoder,
    TokenRequest,
    check_sampling,
    kept_parts,
    sample,
    split_items,
)
from diffsound.text.features import TextFeatures
from diffsound.threads import torch_threads

if TYPE_CHECKING:
    from diffsound.decoder.diffusion.loss import ImportanceSampler


@dataclass(frozen=True)
class TextContext:
    """What the blocks need of a batch of texts.

    keys, values: per block [B, H, S, d]; mask: bool [B, 1, 1, S], True where attended, or None
    when every position is; pooled: [B, W] for the AdaLN, or None when it is not used.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    mask: Tensor | None
    pooled: Tensor | None

    def __getitem__(self, which: slice | list[int]) -> TextContext:
        """Of these texts only."""
        return TextContext(
            keys=tuple(keys[which] for keys in self.keys),
            values=tuple(values[which] for values in self.values),
            mask=None if self.mask is None else self.mask[which],
            pooled=None if self.pooled is None else self.pooled[which],
        )


class Block(nn.Module):
    """Pre-norm self-attention, cross-attention to the text, feed-forward."""

    def __init__(self, config: DiffsoundConfig) -> None:
        super().__init__()
        width, heads = config.width, config.heads
        self.norm_self = AdaptiveNorm(width, config.timesteps)
        self.self_attention = SelfAttention(width, heads)
        self.norm_cross = AdaptiveNorm(width, config.timesteps)
        self.cross_attention = CrossAttention(width, heads, config.text_dim)
        self.norm_mlp = nn.LayerNorm(width)
        self.local: nn.Conv1d | None = None
        if config.local:
            self.local = nn.Conv1d(
                width, width, config.local, padding=config.local // 2, groups=width
            )
        self.mlp = FeedForward(width, config.mlp_ratio, config.activation)
        self.dropout = config.dropout

    def modulation(self, t: Tensor, pooled: Tensor | None) -> Tensor:
        """t [...] -> [..., 4, W]: factor and shift of the two adaptive norms."""
        return torch.cat(
            (self.norm_self.modulation(t, pooled), self.norm_cross.modulation(t, pooled)), dim=-2
        )

    def forward(
        self, x: Tensor, modulation: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """x [B, N, W]; modulation [B or 1, 4, W]; keys, values [B, H, S, d]."""
        x = x + self._drop(self.self_attention(self.norm_self(x, modulation[:, :2])))
        normed = self.norm_cross(x, modulation[:, 2:])
        x = x + self._drop(self.cross_attention(normed, keys, values, mask))
        normed = self.norm_mlp(x)
        if self.local is not None:
            normed = normed + self.local(normed.transpose(1, 2)).transpose(1, 2)
        return x + self._drop(self.mlp(normed))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


def of_rows(cells: Tensor, rows: Tensor) -> Tensor:
    """The rows [n], or rows [B, n] of each item, of cells [B, F', ...]: [B, n, ...]."""
    if rows.dim() == 1:
        return cells[:, rows]
    return cells[torch.arange(len(rows), device=rows.device)[:, None], rows]


class DenoisingTransformer(nn.Module):
    """tokens x_t [B, F', L'] (mask index K), t, text -> logits of x0 [B, F', L', K]."""

    def __init__(self, config: DiffsoundConfig) -> None:
        super().__init__()
        self.config = config
        # Trades a second forward pass for the activations' memory in training.
        self.gradient_checkpointing = False
        width, entries = config.width, config.codebook_size + 1
        self.codes: nn.Module
        self.logits: nn.Module
        self.positions: nn.Module
        if config.position == "cell":
            self.codes = nn.Embedding(entries, width)
            self.positions = CellPositions(
                config.rows, config.columns, width, config.position_scheme == "official"
            )
            self.logits = nn.Linear(width, config.codebook_size)
        else:
            self.codes = ColumnEmbedding(config.rows, entries, width, config.code_width)
            self.positions = ColumnPositions(config.columns, width)
            self.logits = ColumnLogits(config.rows, config.codebook_size, width, config.code_width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.pooled = nn.Linear(config.text_dim, width) if config.pooled_text else None
        self.apply(init_weights)

    def read_text(self, text: TextFeatures) -> TextContext:
        """What the blocks need of a batch of texts."""
        masked = not self.config.attend_padding and not bool(text.mask.all())
        return self.context(text.features, text.mask if masked else None, text.pooled)

    def context(self, features: Tensor, mask: Tensor | None, pooled: Tensor) -> TextContext:
        """Keys and values of every block: features [B, S, D], mask [B, S], pooled [B, D]."""
        if self.config.normalise_text:
            features = F.normalize(features, dim=-1)
        pairs = [block.cross_attention.project_text(features) for block in self._blocks()]
        return TextContext(
            keys=tuple(keys for keys, _ in pairs),
            values=tuple(values for _, values in pairs),
            mask=None if mask is None else mask[:, None, None, :],
            pooled=None if self.pooled is None else self.pooled(pooled),
        )

    def modulations(self, t: Tensor, pooled: Tensor | None) -> tuple[Tensor, ...]:
        """t [...] in 1..T and the context's pooled [..., W] -> per block [..., 4, W]."""
        return tuple(block.modulation(t, pooled) for block in self._blocks())

    def forward(
        self,
        tokens: Tensor,
        modulations: tuple[Tensor, ...],
        context: TextContext,
        rows: Tensor | None = None,
    ) -> Tensor:
        """tokens [B, F', L'] -> logits [B, F', L', K]; modulations per block [B or 1, 4, W].

        rows: int64 [n] or [B, n], the rows whose logits are wanted: [B, n, L', K] then. With one
        position per column the others are not computed.
        """
        x = self._embed(tokens)
        for block, modulation, keys, values in zip(
            self.blocks, modulations, context.keys, context.values, strict=True
        ):
            if self.gradient_checkpointing and self.training:
                x = checkpoint(
                    block, x, modulation, keys, values, context.mask, use_reentrant=False
                )
            else:
                x = block(x, modulation, keys, values, context.mask)
        if self.config.position == "column":
            return self.logits(self.norm(x), rows).transpose(1, 2)
        logits = self.logits(self.norm(x)).unflatten(1, (-1, self.config.rows)).transpose(1, 2)
        return logits if rows is None else of_rows(logits, rows)

    def _embed(self, tokens: Tensor) -> Tensor:
        columns = tokens.shape[-1]
        if self.config.position == "cell":
            return self.codes(flatten(tokens)) + self.positions(columns)
        return self.codes(by_column(tokens)) + self.positions(columns)

    def _blocks(self) -> list[Block]:
        return list(self.blocks)  # type: ignore[arg-type]


class Predictor:
    """`predict(tokens, t, rows) -> logits` for fixed texts, guidance included.

    The texts' keys and values are computed when it is made, the timesteps' scales and shifts by
    `prepare`; a step then costs what depends on the tokens only.
    """

    def __init__(self, transformer: DenoisingTransformer, request: TokenRequest) -> None:
        self.transformer = transformer
        self.settings = request.settings
        self.guided = request.guided
        self.device = next(transformer.parameters()).device
        trim = not transformer.config.attend_padding
        self._read(split_items(request, self.device, trim=trim))

    def _read(self, texts: Sequence[tuple[slice, TextFeatures]]) -> None:
        with torch_threads(1):
            self.parts = [(items, self.transformer.read_text(part)) for items, part in texts]
        self.places: dict[int, int] = {}
        self.modulations: list[tuple[Tensor, ...]] = []

    def guided_at(self, t: int) -> bool:
        """Whether a step that leaves time t is guided: the chain's first share is."""
        unguided = 1 - self.settings.guided_share
        return self.guided and t > unguided * self.transformer.config.timesteps

    def prepare(self, times: Iterable[int]) -> None:
        """Compute the scales and shifts of these times, for all blocks and texts at once."""
        self.places = {t: place for place, t in enumerate(times)}
        t = torch.tensor(list(self.places), device=self.device)[:, None]
        with torch_threads(1):
            if self.transformer.pooled is None:  # then they are the same for every text
                self.modulations = [self.transformer.modulations(t, None)] * len(self.parts)
            else:
                self.modulations = [
                    self.transformer.modulations(t.expand(-1, len(context.pooled)), context.pooled)
                    for _, context in self.parts
                    if context.pooled is not None
                ]

    def only(self, kept: Sequence[int]) -> Predictor:
        """The same for some of the items alone, of every part at least one."""
        chosen = copy.copy(self)
        chosen.parts, chosen.modulations = [], []
        parts = [items for items, _ in self.parts]
        for place, items, texts in kept_parts(parts, kept, self.guided):
            chosen.parts.append((items, self.parts[place][1][texts]))
            # Scales that are the same for every text have one entry for all of them.
            scales = self.modulations[place]
            shared = self.transformer.pooled is None
            chosen.modulations.append(scales if shared else tuple(m[:, texts] for m in scales))
        return chosen

    def __call__(self, tokens: Tensor, t: int, rows: Tensor | None = None) -> Tensor:
        """tokens [B, F', L'] at time t -> logits [B, F', L', K], or of some rows [n] only."""
        guided = self.guided_at(t)
        logits = []
        for place, (items, _) in enumerate(self.parts):
            part = tokens[items]
            if guided:
                toward, away = self._logits(torch.cat((part, part)), t, place, rows).chunk(2)
                logits.append(guide(toward, away, self.settings.guidance_scale))
            else:
                logits.append(self._logits(part, t, place, rows))
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def _logits(self, tokens: Tensor, t: int, place: int, rows: Tensor | None) -> Tensor:
        """The network's answer for one part: as many of its texts as there are tokens."""
        count, (_, context) = len(tokens), self.parts[place]
        scales = tuple(m[self.places[t], :count] for m in self.modulations[place])
        return self.transformer(tokens, scales, context[:count], rows)


_ASKED = 4  # rows of one turn that a training step asks about at most: each costs a head
SCHEDULES = {"linear": linear_schedule, "quarter": quarter_schedule}


class Diffsound(TokenDecoder):
    """Text to tokens by denoising all cells at once."""

    def __init__(self, config: DiffsoundConfig) -> None:
        super().__init__(config)
        self.config = config
        self.chooses_early = config.schedule.row_shares is not None
        # What runs the network in a generation; another backend replaces it.
        self.predictor: Callable[[DenoisingTransformer, TokenRequest], Predictor] = Predictor
        self.schedule = build_schedule(config)
        with torch.device("cpu"):
            self.windows = row_windows(config)
        self._asked = min(_ASKED, max(config.schedule.turns or (1,)))
        self.transformer = DenoisingTransformer(config)
        self.times: ImportanceSampler | None = None
        if config.loss.importance:
            from diffsound.decoder.diffusion.loss import ImportanceSampler

            self.times = ImportanceSampler(config.timesteps)

    def forward(self, tokens: Tensor, t: Tensor, text: TextFeatures) -> Tensor:
        """Logits of x0 [B, F', L', K] from x_t [B, F', L'] at times t [B]."""
        context = self.transformer.read_text(text)
        return self.transformer(tokens, self.transformer.modulations(t, context.pooled), context)

    def loss(
        self, tokens: Tensor, text: TextFeatures, generator: torch.Generator | None = None
    ) -> DecoderLoss:
        """Eq. 25 (or its simplified form) of clean tokens [B, F', L'], in nats per token."""
        from diffsound.decoder.diffusion.loss import diffusion_loss, simplified_loss

        t, probability = self._draw_times(len(tokens), generator)
        settings = self.config.loss
        if self.config.schedule.row_shares is not None:
            return self._loss_in_turn(tokens, t, text, generator)
        noisy = sample_xt(tokens, t, self.schedule, generator)
        t = t.to(tokens.device)
        logits = self(noisy, t, text)
        if settings.variant == "simplified":
            per_item = simplified_loss(logits, tokens, noisy, self.schedule)
            return DecoderLoss(per_item.mean(), per_item.detach())
        terms = diffusion_loss(
            logits,
            tokens,
            noisy,
            t,
            self.schedule,
            auxiliary_weight=settings.auxiliary,
            adaptive=settings.adaptive,
            t_probability=probability,
        )
        if self.times is not None and self.training:
            self.times.update(t, terms.kl * tokens[0].numel())
        return DecoderLoss(
            terms.loss.mean(),
            terms.loss.detach(),
            {"kl": terms.kl.mean(), "x0_nll": terms.x0_nll.mean()},
        )

    def _loss_in_turn(
        self,
        tokens: Tensor,
        t: Tensor,
        text: TextFeatures,
        generator: torch.Generator | None,
    ) -> DecoderLoss:
        """The simplified loss of the rows whose turn it is at t, and a little of the next turn's.

        What lies further on cannot be known well yet, and would drown what can be learned. Of a
        large turn a few rows stand for all.
        """
        from diffsound.decoder.diffusion.loss import rows_in_turn, rows_loss

        assert self.windows is not None
        times = row_times(t, self.windows, self.config.timesteps)
        noisy = sample_xt(tokens, times, self.schedule, generator)
        rows, ahead = rows_in_turn(times, self.windows, self._asked, generator)
        rows, ahead = rows.to(tokens.device), ahead.to(tokens.device)
        context = self.transformer.read_text(text)
        modulations = self.transformer.modulations(t.to(tokens.device), context.pooled)
        logits = self.transformer(noisy, modulations, context, rows)
        later = (ahead == 1).float()
        later = self.config.loss.next_row * later / later.sum(1, keepdim=True).clamp_min(1)
        weights = (ahead == 0).float() + later
        per_item = rows_loss(
            logits, of_rows(tokens, rows), of_rows(noisy, rows), self.schedule, weights
        )
        return DecoderLoss(per_item.mean(), per_item.detach())

    def _draw_times(
        self, batch: int, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor | None]:
        """Times [B] on the CPU, and their probabilities when they are not uniform."""
        if self.times is not None and self.training:
            return self.times.draw(batch, generator)
        # One uniform draw shifts an even grid over 1..T: every item's time is uniform, as in the
        # paper, but a batch covers all times, which takes most of the noise out of the loss.
        place = (torch.rand(1, generator=generator) + torch.arange(batch) / batch) % 1
        return 1 + (place * self.config.timesteps).long().clamp(max=self.config.timesteps - 1), None

    def cell_times(self, t: int) -> Time:
        """The time at which each row reads the schedule, [F'], or t itself for all rows alike."""
        return t if self.windows is None else row_times(t, self.windows, self.schedule.steps)

    def _check(self, request: TokenRequest) -> None:
        check_sampling(self.config, request)

    def _draw(self, request: TokenRequest) -> Tensor:
        return sample(self, self.predictor(self.transformer, request), request)


def row_windows(config: DiffsoundConfig) -> Tensor | None:
    """When each row is noised ([F', 2], see `process.in_turn`), or None for all rows alike."""
    schedule = config.schedule
    return None if schedule.row_shares is None else in_turn(schedule.row_shares, schedule.turns)


def build_schedule(config: DiffsoundConfig) -> Schedule:
    """The forward process of a config."""
    settings, steps, size = config.schedule, config.timesteps, config.codebook_size
    with torch.device("cpu"):  # also for a model that is being built on the meta device
        if settings.kind == "official":
            from diffsound.decoder.diffusion.official import official_schedule

            return official_schedule(steps, size)
        return SCHEDULES[settings.kind](steps, size, settings.transition, settings.gamma_end)
