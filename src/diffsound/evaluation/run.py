"""One command: a bundle and data in, a report out.

    report = evaluate("my-bundle", "data/mine", "out", EvaluationSettings(clips=200))
    report["rows"]["generated"]["scores"]["FID"]["value"]

Rows are scored by the same classifier against the same real clips: `vocoder` and `codec` are what
the later stages cost whatever the decoder does, `generated` is everything. Run again after an
interruption it goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from diffsound.config import Config, parse_config
from diffsound.evaluation import checks
from diffsound.evaluation.caption_metrics import caption_scores
from diffsound.evaluation.captioner import Captioner
from diffsound.evaluation.classifier import Classifier
from diffsound.evaluation.clips import FileClip, clips_of_data
from diffsound.evaluation.compare import clip_scores, compare
from diffsound.evaluation.feature_cache import FeatureCache
from diffsound.evaluation.features import FeatureSet, extract
from diffsound.evaluation.ranking import CaptionRanker
from diffsound.evaluation.score import Score
from diffsound.evaluation.sets import (
    Example,
    Progress,
    choose_examples,
    clips_of,
    sample_names,
    write_examples,
    write_generated,
    write_json,
    write_passed,
    write_real,
)
from diffsound.evaluation.setup import Setup, check_same, find_captioner, set_up
from diffsound.evaluation.spice import corenlp_folder

REPORT = "report.json"
CAPTION_METRICS = ("cider", "spice", "scene_graph")
_CAPTION_NAMES = {"cider": "CIDEr", "spice": "SPICE", "scene_graph": "scene graph"}


class EvaluationSettings(Config):
    """What is generated and measured; another value needs another folder.

    clips: of the split, drawn by the seed (None: all). samples: sounds per text (the paper: 10).
    seconds: length of every sound and cut of every real clip (None: the bundle's own).
    sampling: replaces the bundle's defaults (`num_inference_steps`, `guidance_scale`, …).
    copies: look for copies of training clips. resamples: of the intervals (None: the usual
    number). allow_few: give FID also with fewer clips than it needs, with a warning.
    """

    split: str = "test"
    clips: PositiveInt | None = None
    samples: PositiveInt = 1
    seconds: PositiveFloat | None = None
    seed: int = Field(default=0, ge=0)
    sampling: dict[str, Any] = Field(default_factory=dict)
    copies: bool = True
    resamples: int | None = Field(default=None, ge=0)
    allow_few: bool = False


def evaluate(
    bundle: str | Path | None,
    data: str | Path,
    out: str | Path,
    settings: EvaluationSettings | None = None,
    *,
    classifier: str | Path | None = None,
    captioner: str | Path | None = None,
    corenlp: str | Path | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Generate, score, write OUT/report.json and OUT/report.html; returns the report.

    classifier, captioner: runs; without a classifier the one that ships with the bundle, without
    a captioner the bundle's if it has one. corenlp: the folder of the jars SPICE needs.
    """
    from diffsound.evaluation.report import write_html

    settings = settings or EvaluationSettings()
    jars = corenlp_folder(corenlp)
    bench = set_up(bundle, data, out, classifier=classifier, device=device)
    source, pipeline, judge, prepared = bench.source, bench.pipeline, bench.judge, bench.data
    out, listener = bench.out, find_captioner(source, captioner)
    seconds = settings.seconds or pipeline.bundle.config.defaults.duration
    examples, left_out = choose_examples(prepared, settings.split, settings.clips, settings.seed)
    check_same(out, _fixed(bench, settings, seconds))
    write_examples(out, examples)
    names = sample_names(examples, settings.samples)
    write_real(
        out / "real", prepared, examples,
        rate=pipeline.sample_rate, seconds=seconds, progress=progress,
    )  # fmt: skip
    for through in ("vocoder", "codec"):
        write_passed(
            out / through, out / "real", pipeline, examples, through=through, progress=progress
        )
    speed = write_generated(
        out / "generated", pipeline, examples,
        samples=settings.samples, seconds=seconds, seed=settings.seed,
        sampling=settings.sampling, progress=progress,
    )  # fmt: skip
    ids = [example.id for example in examples]
    sets = {"vocoder": ids, "codec": ids, "generated": list(names)}
    with FeatureCache(out / "features.sqlite") as cache:
        features = {
            row: extract(judge, clips_of(out / row, of), seconds=seconds, cache=cache)
            for row, of in {"real": ids, **sets}.items()
        }
        training = None
        if settings.copies and settings.split != "train" and prepared.where(split="train"):
            known = clips_of_data(prepared, prepared.where(split="train"))
            training = extract(judge, known, seconds=seconds, cache=cache)
    rows: dict[str, Any] = {}
    for row, of in sets.items():
        of_real = names if row == "generated" else None
        comparison = compare(
            features["real"], features[row], of=of_real,
            allow_few=settings.allow_few, resamples=settings.resamples, seed=settings.seed,
        )  # fmt: skip
        scores = comparison.scores | _said(listener, examples, clips_of(out / row, of), names, jars)
        rows[row] = {
            "scores": {name: score.to_json() for name, score in scores.items()},
            "clips": comparison.protocol["generated_clips"],
        }
    if listener is not None:
        scores = _said(listener, examples, clips_of(out / "real", ids), names, jars)
        rows["real"] = {
            "scores": {name: score.to_json() for name, score in scores.items()},
            "clips": len(features["real"]),
        }
    unseen = features["real"] if training is not None else None
    found = checks.report(features["generated"], training, unseen)
    write_real(
        out / "training", prepared, neighbours(found),
        rate=pipeline.sample_rate, seconds=seconds,
    )  # fmt: skip
    report = {
        "title": pipeline.bundle.config.name,
        "rows": rows,
        "checks": found,
        "clips": _per_clip(judge, features, names),
        "protocol": comparison.protocol
        | {
            "real_set": f"{settings.split} split, {len(examples)} clips of {prepared.folder.name}",
            "left_out": left_out,
            "samples_per_text": settings.samples,
            "seconds_per_sound": speed,
            "captioner": listener is not None,
        }
        | bench.protocol(settings.sampling),
    }
    write_json(out / REPORT, report)
    write_html(out, report)
    return report


def neighbours(found: Mapping[str, Any]) -> list[Example]:
    """The training clips that the report shows beside the generated ones nearest to them."""
    names = dict.fromkeys(one["nearest"] for one in found.get("nearest", ()))
    return [Example(name, "", ()) for name in names]


def caption_comparison(
    captioner: Captioner,
    examples: Sequence[Example],
    clips: Sequence[FileClip],
    of: Sequence[str],
    corenlp: Path | None = None,
) -> dict[str, Score]:
    """The audio caption loss (section VI-B) of clips, `of` the real clip with this id.

    corenlp: the folder of the jars SPICE needs; without it SPICE is not available.
    """
    references = {example.id: list(example.captions) for example in examples}
    heard = CaptionRanker(captioner, references.values())
    rate = captioner.mel.sample_rate
    said = [s for clip in clips for s in heard.captions([Heard(clip.wave(rate), rate)])]
    truth = [references[name] for name in of]
    found = caption_scores(said, truth, metrics=CAPTION_METRICS, corenlp=corenlp)
    return {
        _CAPTION_NAMES[name]: Score(_CAPTION_NAMES[name], one.value, "higher", note=one.reason)
        for name, one in found.items()
    }


class Heard:
    """A wave as a ranker takes it."""

    def __init__(self, wave: np.ndarray, sample_rate: int) -> None:
        self.wave, self.sample_rate = wave, sample_rate


def _said(
    captioner: Captioner | None,
    examples: Sequence[Example],
    clips: Sequence[FileClip],
    names: Mapping[str, str],
    corenlp: Path | None,
) -> dict[str, Score]:
    if captioner is None:
        return {}
    of = [names.get(clip.id, clip.id) for clip in clips]
    return caption_comparison(captioner, examples, clips, of, corenlp)


def _per_clip(
    judge: Classifier, features: Mapping[str, FeatureSet], names: Mapping[str, str]
) -> list[dict[str, Any]]:
    scores = clip_scores(judge, features["real"], features["generated"], of=names)
    return [asdict(score) | {"of": names[score.id]} for score in scores]


def _fixed(bench: Setup, settings: EvaluationSettings, seconds: float) -> dict[str, Any]:
    """What decides which sounds are in the folder."""
    made = settings.model_dump(mode="json", exclude={"copies", "resamples", "allow_few"})
    return made | {"seconds": seconds} | bench.fixed()


def parse_settings(values: Mapping[str, Any]) -> EvaluationSettings:
    """Settings from the command line's values."""
    return parse_config(EvaluationSettings, values, source="evaluate")
