"""What every evaluation of a bundle begins with: the bundle, its judges, the data, a folder."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import diffsound
from diffsound.bundle import BUNDLED, CONFIG_FILE, Bundle, resolve
from diffsound.choosing import CaptionerRanker
from diffsound.data.shards import PreparedData
from diffsound.errors import InputError
from diffsound.evaluation.captioner import Captioner, load_captioner
from diffsound.evaluation.classifier import Classifier, load_classifier
from diffsound.evaluation.sets import make_folder, write_json
from diffsound.files import sha256
from diffsound.pipeline import TextToSound

_SETTINGS = "settings.json"


@dataclass(frozen=True)
class Setup:
    """A loaded bundle, the classifier that judges it, real clips, and the folder for results."""

    source: Path
    pipeline: TextToSound
    judge: Classifier
    data: PreparedData
    out: Path

    def fixed(self) -> dict[str, Any]:
        """What decides, besides an evaluation's own settings, which sounds are in the folder."""
        return {
            "bundle": sha256(self.source / CONFIG_FILE),
            "data": sha256(self.data.folder / "index.json"),
        }

    def protocol(self, sampling: Mapping[str, Any]) -> dict[str, Any]:
        """What has to be recorded with any number."""
        config = self.pipeline.bundle.config
        return {
            "sample_rate": self.pipeline.sample_rate,
            "mel": config.codec.mel.model_dump(mode="json"),
            "classifier": self.judge.fingerprint,
            "backbone": self.judge.config.backbone.kind,
            "sampling": asdict(self.pipeline.sampling_settings(**sampling)),
            "device": str(self.pipeline.device),
            "threads": torch.get_num_threads(),
            "bundle": {"name": config.name, "sha256": sha256(self.source / CONFIG_FILE)},
            "versions": versions(),
        }


def set_up(
    bundle: str | Path | None,
    data: str | Path,
    out: str | Path,
    *,
    classifier: str | Path | None = None,
    ranker: str | Path | None = None,
    device: str = "cpu",
) -> Setup:
    """Load everything an evaluation needs and make its folder.

    classifier: a run; else the one that ships with the bundle. ranker: a captioner's run that
    chooses among candidates; else the bundle's.
    """
    source = resolve(bundle)
    judge = load_classifier(judge_folder(source, classifier, "classifier"))
    pipeline = TextToSound(
        Bundle.from_pretrained(source),
        device=device,
        ranker=None if ranker is None else CaptionerRanker(ranker, device),
    )
    return Setup(source, pipeline, judge, PreparedData.open(data), make_folder(Path(out)))


def judge_folder(bundle: Path, given: str | Path | None, kind: str) -> Path:
    """The folder of a classifier or captioner: the one given, or one that ships with a bundle."""
    if given is not None and str(given) != "bundle":
        return Path(given)
    for place in (bundle / kind, BUNDLED / kind, BUNDLED.parent / kind):
        if place.is_dir():
            return place
    raise InputError(f"{bundle} has no {kind} of its own; give one with --{kind} RUN")


def find_captioner(bundle: Path, given: str | Path | None) -> Captioner | None:
    """The captioner given, or the bundle's, or None: then caption scores are left out."""
    if given is None:
        try:
            return load_captioner(judge_folder(bundle, None, "captioner"))
        except InputError:
            return None
    return load_captioner(judge_folder(bundle, given, "captioner"))


def versions() -> dict[str, str]:
    """What a number may depend on."""
    return {
        "diffsound": diffsound.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def check_same(out: Path, now: dict[str, Any]) -> None:
    """Refuse to mix the sounds of two settings in one folder."""
    path = out / _SETTINGS
    if path.exists():
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            before = {}
        changed = [f"{key} was {before.get(key)!r}" for key in now if before.get(key) != now[key]]
        if changed:
            raise InputError(
                f"{out} holds an evaluation with other settings ({'; '.join(changed)}); "
                "use the same ones or another --out"
            )
    write_json(path, now)
