"""The networks that judge sounds, and ranking by them.

A bundle may contain them, each in the form of a run's export:

    my-bundle/matcher/       how well a sound fits a text: chooses among candidates
    my-bundle/captioner/     describes a sound: caption scores; can rank, too
    my-bundle/classifier/    features and labels for FID, KL and recognition

A bundle can generate without them; each is loaded on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from torch import nn

from diffsound.config import Config, parse_config
from diffsound.weights import build_with, load_export_of, read_header

JudgeKind = Literal["captioner", "classifier", "matcher"]
JUDGES: tuple[JudgeKind, ...] = get_args(JudgeKind)
ConfigT = TypeVar("ConfigT", bound=Config)
JudgeT = TypeVar("JudgeT", bound=nn.Module)


def judges_in(bundle: Path) -> dict[JudgeKind, Path]:
    """The folders of the judges a bundle's folder holds."""
    return {kind: bundle / kind for kind in JUDGES if (bundle / kind).is_dir()}


def load_judge(kind: JudgeKind, folder: str | Path) -> nn.Module:
    """The judge in a bundle's folder or a run, checked against its checksum and in eval mode."""
    from diffsound.judges.captioner import load_captioner
    from diffsound.judges.classifier import load_classifier
    from diffsound.judges.ranking import load_matcher

    loaders: dict[JudgeKind, Callable[[str | Path], nn.Module]] = {
        "captioner": load_captioner,
        "classifier": load_classifier,
        "matcher": load_matcher,
    }
    return loaders[kind](folder)


def load_exported(
    folder: str | Path, kind: JudgeKind, config: type[ConfigT], build: Callable[[ConfigT], JudgeT]
) -> JudgeT:
    """The judge of a run, of its export, or of a folder shipped like one; in eval mode."""
    content, state = load_export_of(folder, kind)
    parsed = parse_config(config, content, str(folder))
    return build_with(lambda: build(parsed), state, str(folder)).eval().requires_grad_(False)


def describe_judge(kind: JudgeKind, folder: Path) -> dict[str, Any]:
    """What `diffsound bundle inspect` shows: parameters, steps and held-out scores."""
    header = read_header(folder)
    parameters = sum(p.numel() for p in load_judge(kind, folder).parameters())
    return {"parameters": parameters, "step": header["step"]} | header["metrics"]
