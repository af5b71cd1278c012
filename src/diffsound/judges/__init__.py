"""All that listens: the networks that judge sounds, and ranking by them.

A bundle may carry them, each in the form of a run's export:

    my-bundle/matcher/       says how well sounds fit a text: chooses among candidates
    my-bundle/captioner/     says what is heard, word by word: caption scores; ranks, too
    my-bundle/classifier/    features and labels behind FID, KL and recognition

A bundle makes sounds without them; they are loaded when they are first asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from torch import nn

JudgeKind = Literal["captioner", "classifier", "matcher"]
JUDGES: tuple[JudgeKind, ...] = get_args(JudgeKind)


def judges_in(bundle: Path) -> dict[JudgeKind, Path]:
    """The folders of the judges a bundle's folder holds."""
    return {kind: bundle / kind for kind in JUDGES if (bundle / kind).is_dir()}


def load_judge(kind: JudgeKind, folder: str | Path) -> nn.Module:
    """The judge in a bundle's folder or a run, checked against its checksum and in eval mode."""
    from diffsound.judges.captioner import load_captioner
    from diffsound.judges.classifier import load_classifier
    from diffsound.judges.matcher import load_matcher

    loaders: dict[JudgeKind, Callable[[str | Path], nn.Module]] = {
        "captioner": load_captioner,
        "classifier": load_classifier,
        "matcher": load_matcher,
    }
    return loaders[kind](folder)


def describe_judge(kind: JudgeKind, folder: Path) -> dict[str, Any]:
    """What `diffsound bundle inspect` shows of a judge: its size, steps and held-out figures."""
    from diffsound.weights import read_header

    header = read_header(folder)
    parameters = sum(p.numel() for p in load_judge(kind, folder).parameters())
    return {"parameters": parameters, "step": header["step"]} | header["metrics"]
