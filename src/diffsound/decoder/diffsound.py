"""Diffsound, the discrete-diffusion token decoder (section IV): loss and generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from diffsound.decoder.config import DiffsoundConfig
from diffsound.decoder.contract import Choice, DecoderLoss, Known, StepCallback, check_request
from diffsound.decoder.diffusion.process import sample_xt
from diffsound.decoder.diffusion.schedule import (
    Schedule,
    cosine_schedule,
    in_turn,
    linear_schedule,
    quarter_schedule,
    row_times,
    rows_in_turn,
)
from diffsound.decoder.sampling import Predictor, check_sampling, sample
from diffsound.decoder.settings import SamplingSettings
from diffsound.decoder.transformer import DenoisingTransformer, of_rows
from diffsound.text.features import TextFeatures

if TYPE_CHECKING:
    from diffsound.decoder.diffusion.loss import ImportanceSampler

_DEFAULT = SamplingSettings()
_ASKED = 4  # rows of one turn that a training step asks about at most: each costs a head
SCHEDULES = {"linear": linear_schedule, "cosine": cosine_schedule, "quarter": quarter_schedule}


class Diffsound(nn.Module):
    """Text to tokens by denoising all cells at once; keeps `contract.TokenDecoder`."""

    def __init__(self, config: DiffsoundConfig) -> None:
        super().__init__()
        self.config = config
        self.rows = config.rows
        self.codebook_size = config.codebook_size
        self.text_dim = config.text_dim
        self.schedule = build_schedule(config)
        with torch.device("cpu"):
            self.windows = row_windows(config)
        self._asked = min(_ASKED, max(config.schedule.turns or (1,)))
        self.transformer = DenoisingTransformer(config)
        self.times: ImportanceSampler | None = None
        if config.loss.importance:
            from diffsound.decoder.diffusion.loss import ImportanceSampler

            self.times = ImportanceSampler(config.timesteps)

    @property
    def chooses_early(self) -> bool:
        return self.config.schedule.row_shares is not None

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
        from diffsound.decoder.diffusion.loss import rows_loss

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

    @torch.no_grad()
    def generate(
        self,
        text: TextFeatures,
        grid: tuple[int, int],
        generators: Sequence[torch.Generator],
        settings: SamplingSettings = _DEFAULT,
        *,
        negative: TextFeatures | None = None,
        known: Known | None = None,
        callback: StepCallback | None = None,
        together: int = 1,
        choice: Choice | None = None,
    ) -> Tensor:
        """Draw tokens [B, F', L'], or those of the takes chosen; see the contract."""
        check_request(
            rows=self.rows,
            codebook_size=self.codebook_size,
            text_dim=self.text_dim,
            text=text,
            grid=grid,
            generators=generators,
            settings=settings,
            negative=negative,
            known=known,
        )
        check_sampling(self.config, settings, known, choice)
        was_training = self.training
        self.eval()
        try:
            predictor = Predictor(
                self.transformer,
                text,
                negative,
                guidance_scale=settings.guidance_scale,
                guided_share=settings.guided_share,
                together=together,
            )
            return sample(
                predictor,
                self.schedule,
                self.windows,
                (len(text), *grid),
                generators,
                settings,
                known,
                callback,
                choice,
            )
        finally:
            self.train(was_training)


def row_windows(config: DiffsoundConfig) -> Tensor | None:
    """When each row is noised ([F', 2], see `schedule.py`), or None for all rows alike."""
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
