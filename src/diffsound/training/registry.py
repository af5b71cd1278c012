"""The stages there are; a new one is a config, a Stage and an entry here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from diffsound.data.shards import PreparedData
from diffsound.errors import InputError
from diffsound.training.config import RunConfig
from diffsound.training.sets import Process
from diffsound.training.stage import Stage


@dataclass(frozen=True)
class StageSpec:
    """What a stage's config file holds, and how the stage is made of it."""

    config: type[RunConfig]
    build: Callable[[Any, PreparedData, Process], Stage]


def _codec() -> StageSpec:
    from diffsound.training.codec import CodecRun, CodecStage

    return StageSpec(CodecRun, CodecStage)


def _vocoder() -> StageSpec:
    from diffsound.training.vocoder import VocoderRun, VocoderStage

    return StageSpec(VocoderRun, VocoderStage)


def _classifier() -> StageSpec:
    from diffsound.training.classifier import ClassifierRun, ClassifierStage

    return StageSpec(ClassifierRun, ClassifierStage)


def _decoder() -> StageSpec:
    from diffsound.training.decoder import DecoderStage
    from diffsound.training.decoder_run import DecoderRun

    return StageSpec(DecoderRun, DecoderStage)


def _captioner() -> StageSpec:
    from diffsound.training.captioner import CaptionerRun, CaptionerStage

    return StageSpec(CaptionerRun, CaptionerStage)


def _matcher() -> StageSpec:
    from diffsound.training.matcher import MatcherRun, MatcherStage

    return StageSpec(MatcherRun, MatcherStage)


# Each imported when it is asked for: a stage needs its own models only.
STAGES: dict[str, Callable[[], StageSpec]] = {
    "codec": _codec,
    "vocoder": _vocoder,
    "decoder": _decoder,
    "classifier": _classifier,
    "captioner": _captioner,
    "matcher": _matcher,
}


def stage_spec(kind: str) -> StageSpec:
    """The stage of that name; an unknown one is refused with those there are."""
    try:
        return STAGES[kind]()
    except KeyError:
        raise InputError(
            f"there is no training stage '{kind}'; choose one of {', '.join(STAGES)}"
        ) from None
