"""The contract both token decoders keep, and the settings of one generation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from diffsound.text.features import TextFeatures

SamplerName = Literal["ancestral", "confidence", "official"]


@dataclass(frozen=True)
class SamplingSettings:
    """How tokens are drawn. What a decoder cannot use it refuses with an InputError.

    sampler: "ancestral" is the paper's chain (algorithm 2, exact posterior for any stride);
        "confidence" unmasks in parallel by confidence; "official" is the published code's chain.
    num_inference_steps: network evaluations, 1 to T; None means T (or stride decides).
    stride: the paper's time stride, an alternative to num_inference_steps.
    truncation: keep the smallest set of tokens whose mass reaches this (1 keeps all).
    top_k: keep the k most likely tokens (None keeps all).
    guided_share: share of the chain, from its start at T, that is guided; the rest costs half.
        What is decided early is what the text is about.
    remask: share of the already drawn tokens that the confidence sampler masks again and redraws
        at every step, the least sure ones.
    best_of: for every sound so many are drawn, and the one that fits the text best is kept
        (section VIII-D); the pipeline does that, a decoder draws what it is told to.
    chosen_after: share of the chain, from its start at T, after which the best of them is chosen
        and goes on alone; where rows are drawn in turn, what comes later only refines. 1 compares
        finished sounds, and so does a decoder or codec with nothing to compare before.
    layered: a sentence of several sounds becomes a scene of sounds made one by one: layers.py.
        The pipeline does that too.
    level: every sound is brought within 6 dB of this RMS level, in dB of full scale, of the parts
        that sound, as far as its peaks allow (None leaves it as it is drawn). And that.
    """

    sampler: SamplerName = "ancestral"
    num_inference_steps: int | None = None
    stride: int | None = None
    guidance_scale: float = 1.0
    guided_share: float = 1.0
    temperature: float = 1.0
    truncation: float = 1.0
    top_k: int | None = None
    remask: float = 0.0
    best_of: int = 1
    chosen_after: float = 1.0
    layered: bool = False
    level: float | None = None


@dataclass(frozen=True)
class Known:
    """Tokens given beforehand: for inpainting and continuing, and (with `start_step`) variation.

    tokens: [B, F', L'] the clip's own tokens.
    keep: [B, F', L'] bool, True at cells that must come out exactly as given.
    start_step: None starts free cells from the stationary distribution; t in 1..T starts them
        from q(x_t | tokens), so a small t stays near the original.
    """

    tokens: Tensor
    keep: Tensor
    start_step: int | None = None


@dataclass(frozen=True)
class Choice:
    """Which of the takes of a text are worth finishing.

    share: of the chain, from its start at T, after which they are compared.
    best: the rows that are drawn by then, [B, k, L'] -> which items go on, int64, rising; at least
        one of those drawn `together`.
    """

    share: float
    best: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class DecoderLoss:
    """loss: a scalar to differentiate; per_item: [B], detached; logs: named detached scalars."""

    loss: Tensor
    per_item: Tensor
    logs: dict[str, Tensor] = field(default_factory=dict)


# Called after every step with (steps done, steps in all, current tokens [B, F', L']).
# Cells not drawn yet hold the mask index K.
StepCallback = Callable[[int, int, Tensor], None]


class TokenDecoder(Protocol):
    """Text features to a grid of tokens; AR and Diffsound alike (both are nn.Modules)."""

    rows: int
    codebook_size: int
    text_dim: int

    @property
    def chooses_early(self) -> bool:
        """Whether a `Choice` can be made: coarse rows are finished before fine ones begin."""
        ...

    def loss(
        self, tokens: Tensor, text: TextFeatures, generator: torch.Generator | None = None
    ) -> DecoderLoss:
        """Training loss of tokens [B, F', L'] given their text."""
        ...

    def generate(
        self,
        text: TextFeatures,
        grid: tuple[int, int],
        generators: Sequence[torch.Generator],
        settings: SamplingSettings = SamplingSettings(),
        *,
        negative: TextFeatures | None = None,
        known: Known | None = None,
        callback: StepCallback | None = None,
        together: int = 1,
        choice: Choice | None = None,
    ) -> Tensor:
        """Draw tokens [B, F', L'], or only those of the items chosen on the way; one CPU generator
        per item.

        An item's tokens depend on its own text and generator only, never on its neighbours in
        the batch, but for the `together` items in a row that one caller always asks for at once:
        those may run as one, which is cheaper. `negative` is what guidance moves away from (the
        encoded empty text when the user gave none); it is needed when guidance_scale != 1.
        `choice` is for decoders that draw rows in turn (`chooses_early`); others refuse it.
        """
        ...
