"""The stages of a bundle in a row, on one device: texts, tokens, mels, waves.

What runs alone and what runs beside others gives the same bits: `threads.py` says how.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from diffsound.bundle import Bundle
from diffsound.decoder.contract import Choice, Known, SamplingSettings, StepCallback
from diffsound.stages import Stages
from diffsound.text.features import TextFeatures
from diffsound.threads import one_core_each, torch_threads
from diffsound.vocoder.pieces import vocode_pieces

_FEW_COLUMNS = 16  # below this a second core is no help, and rounds differently: threads.py


class Chain:
    """From text features to a wave and back to tokens, one stage at a time."""

    def __init__(self, bundle: Bundle, device: torch.device, stages: Stages) -> None:
        """stages: who runs the networks of the bundle."""
        self.bundle = bundle
        self.device = device
        self.stages = stages
        for module in (bundle.codec, bundle.decoder, bundle.vocoder):
            module.to(device)

    @property
    def sample_rate(self) -> int:
        return self.bundle.config.codec.mel.sample_rate

    @property
    def column_samples(self) -> int:
        """Samples under one column of the grid."""
        return self.bundle.config.codec.mel.hop_length * self.bundle.codec.time_stride

    def columns(self, samples: int) -> int:
        """Columns L' of the grid that cover so many samples."""
        return math.ceil(samples / self.column_samples)

    @torch.inference_mode()
    def encode_text(self, texts: list[str]) -> TextFeatures:
        with torch_threads(1):
            return self.bundle.text_encoder(texts).to(self.device)

    @torch.inference_mode()
    def draw(
        self,
        text: TextFeatures,
        seeds: Sequence[int],
        samples: int,
        settings: SamplingSettings,
        *,
        avoid: str = "",
        known: Known | None = None,
        on_step: StepCallback | None = None,
        choice: Choice | None = None,
    ) -> Tensor:
        """Tokens [B, F', L'] for B texts, each drawn with its own seed, to cover `samples`.

        choice: only those that it lets go on (see `can_choose_early`).
        """
        grid = (self.bundle.codec.rows, self.columns(samples))
        negative = None
        if settings.guidance_scale != 1.0:
            negative = self.encode_text([avoid]).repeat(len(seeds))
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        with torch_threads(1 if grid[1] < _FEW_COLUMNS else torch.get_num_threads()):
            return self.stages.generate(
                text, grid, generators, settings,
                negative=negative, known=known, callback=on_step, together=settings.best_of,
                choice=choice,
            )  # fmt: skip

    @torch.inference_mode()
    def decode(self, tokens: Tensor) -> Tensor:
        """tokens [B, F', L'] -> mel [B, n_mels, L] in [0, 1].

        On a CPU item by item and each on one core, for the same bits alone and in a batch.
        """
        parts = one_core_each(self.stages.decode, self._parts(tokens))
        return torch.cat(parts).clamp(0.0, 1.0).float()

    @property
    def can_choose_early(self) -> bool:
        """Whether takes can be compared before they are finished: coarse rows come first, and can
        be heard without the others."""
        return self.bundle.decoder.chooses_early and self.bundle.codec.sketches

    @torch.inference_mode()
    def sketch(self, tokens: Tensor) -> Tensor:
        """The first rows of tokens, [B, k, L'] -> a rough mel [B, n_mels, L] in [0, 1].

        On one core, as `decode`.
        """
        with torch_threads(1):
            parts = [self.bundle.codec.sketch(part) for part in self._parts(tokens)]
        return torch.cat(parts).clamp(0.0, 1.0).float()

    @torch.inference_mode()
    def vocode(self, mels: Tensor) -> Tensor:
        """mel [B, n_mels, L] -> wave [B, L·hop].

        On a CPU item by item, as `decode`; long ones in pieces, where the vocoder can.
        """

        def each(parts: Sequence[Tensor]) -> Sequence[Tensor]:
            return one_core_each(self.stages.vocode, parts)

        parts, reach = self._parts(mels), self.bundle.vocoder.reach
        if reach is None or self.device.type != "cpu":
            return torch.cat(list(each(parts))).float()
        hop = self.bundle.config.codec.mel.hop_length
        return torch.cat(vocode_pieces(parts, reach, hop, each)).float()

    @torch.inference_mode()
    def mel(self, wave: Tensor) -> Tensor:
        """wave [samples] -> mel [1, n_mels, L] of whole columns."""
        columns = self.columns(len(wave))
        missing = columns * self.column_samples - len(wave)
        padded = torch.nn.functional.pad(wave, (0, missing))
        # The centred transform gives one frame more than hops; the grid has no column for it.
        frames = columns * self.bundle.codec.time_stride
        return self.bundle.mel_front_end(padded[None])[:, :, :frames].to(self.device)

    @torch.inference_mode()
    def tokenize(self, wave: Tensor) -> Tensor:
        """wave [samples] -> tokens [F', L'], L' = `columns(samples)`."""
        return self.bundle.codec.encode(self.mel(wave))[0]

    def _parts(self, items: Tensor) -> Sequence[Tensor]:
        """What runs at once: on a CPU one item."""
        return items.to(self.device).split(1 if self.device.type == "cpu" else len(items))
