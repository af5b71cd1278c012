"""A decoder from its config."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffsound.decoder.config import ARConfig, DiffsoundConfig

if TYPE_CHECKING:
    from diffsound.decoder.ar import ARDecoder
    from diffsound.decoder.diffsound import Diffsound


def build_decoder(config: DiffsoundConfig | ARConfig) -> Diffsound | ARDecoder:
    """A new decoder with random weights; both kinds keep `contract.TokenDecoder`."""
    if isinstance(config, DiffsoundConfig):
        from diffsound.decoder.diffsound import Diffsound

        return Diffsound(config)
    from diffsound.decoder.ar import ARDecoder

    return ARDecoder(config)
