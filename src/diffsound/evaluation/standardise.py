"""Mels as networks that listen want them: every band with the same mean and spread."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from diffsound.errors import InputError

MIN_FRAMES = 16  # less than 0.2 s at the published frame rate says nothing about a sound


class Standardised(nn.Module):
    """Base of a network that knows the statistics of its training clips' bands."""

    mean: Tensor  # [n_mels]
    std: Tensor  # [n_mels]

    def __init__(self, n_mels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((n_mels,), 0.5))
        self.register_buffer("std", torch.full((n_mels,), 0.25))

    def standardise_by(self, mean: Tensor, std: Tensor) -> None:
        """Set the bands' statistics [n_mels] of the training clips, as standardisation uses."""
        self.mean.copy_(mean)
        self.std.copy_(std.clamp_min(1e-3))  # a band that never moves must not be blown up

    def standardised(self, mel: Tensor) -> Tensor:
        """Mel [B, n_mels, L] in [0, 1] to bands of mean 0 and deviation 1."""
        if mel.ndim != 3 or mel.shape[1] != len(self.mean) or mel.shape[2] < MIN_FRAMES:
            raise InputError(
                f"the {type(self).__name__.lower()} takes mels [B, {len(self.mean)}, at least "
                f"{MIN_FRAMES} frames], not {list(mel.shape)}"
            )
        return (mel - self.mean[:, None]) / self.std[:, None]
