"""The autoregressive token decoder (section III-C): loss and cached generation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsound.decoder.causal import CausalTransformer, LayerCache, causal_mask
from diffsound.decoder.config import ARConfig
from diffsound.decoder.contract import (
    Choice,
    DecoderLoss,
    Known,
    StepCallback,
    check_request,
    split_items,
)
from diffsound.decoder.diffusion.draws import draw_categorical, filter_logits, guide, uniforms
from diffsound.decoder.settings import SamplingSettings
from diffsound.errors import InputError
from diffsound.text.features import TextFeatures
from diffsound.threads import torch_threads

_DEFAULT = SamplingSettings()


class ARDecoder(nn.Module):
    """Text to tokens one step after the other; keeps `contract.TokenDecoder`."""

    def __init__(self, config: ARConfig) -> None:
        super().__init__()
        self.config = config
        self.rows = config.rows
        self.codebook_size = config.codebook_size
        self.text_dim = config.text_dim
        self.transformer = CausalTransformer(config)

    @property
    def chooses_early(self) -> bool:
        return False

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
        use_cache: bool = True,
    ) -> Tensor:
        """Draw tokens [B, F', L']; see the contract.

        Known cells are forced as they come up: they shape what follows, not what came before.
        use_cache: False recomputes the whole prefix at every step, as the published code does.
        """
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
        if choice is not None:
            raise InputError("the AR decoder has nothing to compare before its takes are finished")
        _check_settings(settings, known)
        was_training = self.training
        self.eval()
        try:
            return self._generate(
                text, grid, generators, settings, negative, known, callback, together, use_cache
            )
        finally:
            self.train(was_training)

    def _generate(
        self,
        text: TextFeatures,
        grid: tuple[int, int],
        generators: Sequence[torch.Generator],
        settings: SamplingSettings,
        negative: TextFeatures | None,
        known: Known | None,
        callback: StepCallback | None,
        together: int,
        use_cache: bool,
    ) -> Tensor:
        model, blank = self.transformer, self.codebook_size
        device = next(self.parameters()).device
        shape = (len(text), *grid)
        keep = torch.zeros(shape, dtype=torch.bool, device=device)
        drawn = torch.full(shape, blank, device=device)
        if known is not None:
            keep = known.keep.to(device)
            drawn = torch.where(keep, known.tokens.to(device), drawn)
        steps = model.to_steps(drawn, blank=blank)
        fixed = model.to_steps(keep, blank=True)
        noise = uniforms(generators, tuple(steps.shape), device)
        guided = settings.guidance_scale != 1
        streams = [
            (items, _Stream(model, texts, grid[1], use_cache))
            for items, texts in split_items(
                text, negative if guided else None, device, together=together
            )
        ]
        for step in range(steps.shape[1]):
            for items, stream in streams:
                logits = stream.next_logits()
                if guided:
                    toward, away = logits.chunk(2)
                    logits = guide(toward, away, settings.guidance_scale)
                probs = filter_logits(
                    logits,
                    temperature=settings.temperature,
                    top_k=settings.top_k,
                    truncation=settings.truncation,
                )
                choice = draw_categorical(probs, noise[items, step])
                steps[items, step] = torch.where(fixed[items, step], steps[items, step], choice)
                chosen = steps[items, step]
                stream.append(torch.cat((chosen, chosen)) if guided else chosen)
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


def _check_settings(settings: SamplingSettings, known: Known | None) -> None:
    """Refuse what only a diffusion decoder can do."""
    if settings.sampler != _DEFAULT.sampler:
        raise InputError(f"the AR decoder has no samplers: leave out '{settings.sampler}'")
    if settings.remask:
        raise InputError("the AR decoder cannot remask: it draws every token once")
    if settings.num_inference_steps is not None or settings.stride is not None:
        raise InputError(
            "the AR decoder takes one step per token: leave out num_inference_steps and stride"
        )
    if known is not None and known.start_step is not None:
        raise InputError("the AR decoder cannot vary a clip: start_step needs a diffusion decoder")
