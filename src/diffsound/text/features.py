"""What a text encoder returns, and a cache in front of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class TextFeatures:
    """A batch of encoded texts.

    features: [B, S, D] one vector per text token; zero where the mask is False.
    mask:     [B, S] bool, True at real tokens, False at padding.
    pooled:   [B, D] one vector per text.
    """

    features: Tensor
    mask: Tensor
    pooled: Tensor

    def __len__(self) -> int:
        return self.features.shape[0]

    @property
    def dim(self) -> int:
        return self.features.shape[-1]

    def __getitem__(self, index: slice | Tensor | Sequence[int]) -> TextFeatures:
        """The texts at `index`, as a batch (an index keeps the batch axis)."""
        if not isinstance(index, slice | Tensor):
            index = torch.as_tensor(index, dtype=torch.long)
        return TextFeatures(self.features[index], self.mask[index], self.pooled[index])

    def repeat(self, times: int) -> TextFeatures:
        """Each text `times` times in a row: [a, b] -> [a, a, b, b]."""
        return TextFeatures(
            self.features.repeat_interleave(times, dim=0),
            self.mask.repeat_interleave(times, dim=0),
            self.pooled.repeat_interleave(times, dim=0),
        )

    def to(self, device: torch.device | str) -> TextFeatures:
        return TextFeatures(self.features.to(device), self.mask.to(device), self.pooled.to(device))

    @staticmethod
    def cat(batches: Sequence[TextFeatures]) -> TextFeatures:
        """Join batches, padding the shorter ones in S."""
        length = max(batch.features.shape[1] for batch in batches)
        padded = [batch.pad_to(length) for batch in batches]
        return TextFeatures(
            torch.cat([batch.features for batch in padded]),
            torch.cat([batch.mask for batch in padded]),
            torch.cat([batch.pooled for batch in padded]),
        )

    def pad_to(self, length: int) -> TextFeatures:
        """Pad S with zeros and False up to `length`."""
        missing = length - self.features.shape[1]
        if missing <= 0:
            return self
        return TextFeatures(
            torch.nn.functional.pad(self.features, (0, 0, 0, missing)),
            torch.nn.functional.pad(self.mask, (0, missing)),
            self.pooled,
        )


class TextEncoder(Protocol):
    """A frozen text encoder."""

    @property
    def dim(self) -> int:
        """D, the width of its features."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes whenever the features of some text would change."""
        ...

    def __call__(self, texts: Sequence[str]) -> TextFeatures: ...


class CachedTextEncoder:
    """A text encoder that caches the features of another one, on the CPU.

    It keeps the features of the `max_entries` texts used last.
    """

    def __init__(self, encoder: TextEncoder, max_entries: int = 4096) -> None:
        self.dim, self.fingerprint = encoder.dim, encoder.fingerprint
        self._encoder = encoder
        self._max_entries = max_entries
        self._kept: dict[str, TextFeatures] = {}  # the text used last is the last key

    def __call__(self, texts: Sequence[str]) -> TextFeatures:
        """Features of `texts`, encoding only those not kept."""
        if missing := [text for text in dict.fromkeys(texts) if text not in self._kept]:
            encoded = self._encoder(missing).to("cpu")
            for row, text in enumerate(missing):
                length = int(encoded.mask[row].sum())
                self._kept[text] = TextFeatures(
                    encoded.features[[row], :length],
                    encoded.mask[[row], :length],
                    encoded.pooled[[row]],
                )
        for text in texts:
            self._kept[text] = self._kept.pop(text)
        made = TextFeatures.cat([self._kept[text] for text in texts])
        for text in list(self._kept)[: -self._max_entries]:
            del self._kept[text]
        return made
