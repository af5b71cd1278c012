"""Token decoders: text features to a grid of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diffsound.decoder.ar import ARDecoder
    from diffsound.decoder.config import ARConfig, DiffsoundConfig
    from diffsound.decoder.diffsound import Diffsound


def build_decoder(config: DiffsoundConfig | ARConfig) -> Diffsound | ARDecoder:
    """A new decoder with random weights; both kinds keep `contract.TokenDecoder`."""
    if config.kind == "ar":
        from diffsound.decoder.ar import ARDecoder

        return ARDecoder(config)
    from diffsound.decoder.diffsound import Diffsound

    return Diffsound(config)
