"""One command: a bundle and data in, a report out.

    report = evaluate("my-bundle", "data/mine", "out", EvaluationSettings(clips=200))
    report["rows"]["generated"]["scores"]["FID"]["value"]

All rows are scored by the same classifier against the same real clips: `vocoder` and `codec` show
what the later stages cost whatever the decoder does, `generated` shows the whole model. After an
interruption, run it again and it continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from diffsound.config import Config, parse_config
from diffsound.evaluation.captions import COMPARED, METRICS, caption_comparison
from diffsound.evaluation.checks import check_set
from diffsound.evaluation.compare import clip_scores, compare
from diffsound.evaluation.features import FeatureCache, FeatureSet, clips_of, clips_of_data, extract
from diffsound.evaluation.pages import write_evaluation
from diffsound.evaluation.scores import Score
from diffsound.evaluation.sets import (
    REPORT,
    Example,
    Progress,
    Setup,
    check_same,
    choose_examples,
    find_captioner,
    sample_names,
    set_up,
    write_examples,
    write_generated,
    write_json,
    write_passed,
    write_real,
)
from diffsound.evaluation.spice import corenlp_folder
from diffsound.judges.classifier import Classifier


class EvaluationSettings(Config):
    """What is generated and measured; other sounds need another folder.

    clips: of the split, drawn by the seed (None: all). samples: sounds per text (the paper: 10).
    seconds: length of every sound and cut of every real clip (None: the bundle's default).
    sampling: replaces the bundle's defaults (`num_inference_steps`, `guidance_scale`, …).
    copies: search for copies of training clips. resamples: for the intervals (None: the default).
    allow_few: give FID even with fewer clips than it needs, with a warning.
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
    caption_metrics: tuple[str, ...] = COMPARED

    @field_validator("caption_metrics")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in names if name not in METRICS]
        if unknown:
            raise ValueError(f"unknown metric '{unknown[0]}'; there are: {', '.join(METRICS)}")
        return names


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

    classifier, captioner: runs; by default the bundle's, and without any captioner there are no
    caption scores. corenlp: the folder of the jars that SPICE needs.
    """
    settings = settings or EvaluationSettings()
    jars = corenlp_folder(corenlp)
    bench = set_up(bundle, data, out, classifier=classifier, device=device)
    listener = find_captioner(bench.source, captioner)
    seconds = settings.seconds or bench.pipeline.bundle.config.defaults.duration
    examples, left_out = choose_examples(bench.data, settings.split, settings.clips, settings.seed)
    check_same(bench.out, _fixed(bench, settings, seconds))
    write_examples(bench.out, examples)
    speed = _write_sets(bench, examples, settings, seconds, progress)
    of = sample_names(examples, settings.samples)
    ids = {example.id: example.id for example in examples}
    sets = {"real": ids, "vocoder": ids, "codec": ids, "generated": of}
    features, training = _features(bench, sets, settings, seconds)
    scores: dict[str, dict[str, Score]] = {row: {} for row in sets}
    for row in ("vocoder", "codec", "generated"):
        comparison = compare(
            features["real"], features[row], of=of if row == "generated" else None,
            allow_few=settings.allow_few, resamples=settings.resamples, seed=settings.seed,
        )  # fmt: skip
        scores[row] |= comparison.scores
    if listener is not None:
        for row, names in sets.items():
            clips = clips_of(bench.out / row, names)
            scores[row] |= caption_comparison(
                listener, examples, clips, list(names.values()), jars, settings.caption_metrics
            )
    found = check_set(
        features["generated"], training, features["real"] if training is not None else None
    )
    neighbours = dict.fromkeys(one["nearest"] for one in found.get("nearest", ()))
    write_real(
        bench.out / "training", bench.data, [Example(name, "", ()) for name in neighbours],
        rate=bench.pipeline.sample_rate, seconds=seconds,
    )  # fmt: skip
    report = {
        "title": bench.pipeline.bundle.config.name,
        "rows": {
            row: {
                "scores": {name: score.to_json() for name, score in found_scores.items()},
                "clips": len(features[row]),
            }
            for row, found_scores in scores.items()
            if found_scores
        },
        "checks": found,
        "clips": _per_clip(bench.judge, features, of),
        "protocol": comparison.protocol
        | {
            "real_set": f"{settings.split} split, {len(examples)} clips of "
            f"{bench.data.folder.name}",
            "left_out": left_out,
            "samples_per_text": settings.samples,
            "seconds_per_sound": speed,
            "captioner": listener is not None,
        }
        | bench.protocol(settings.sampling),
    }
    write_json(bench.out / REPORT, report)
    write_evaluation(bench.out, report)
    return report


def _write_sets(
    bench: Setup,
    examples: Sequence[Example],
    settings: EvaluationSettings,
    seconds: float,
    progress: Progress | None,
) -> float | None:
    """Write every row's sounds that are missing; returns the seconds one generated sound takes."""
    out, pipeline = bench.out, bench.pipeline
    write_real(
        out / "real", bench.data, examples,
        rate=pipeline.sample_rate, seconds=seconds, progress=progress,
    )  # fmt: skip
    for through in ("vocoder", "codec"):
        write_passed(
            out / through, out / "real", pipeline, examples, through=through, progress=progress
        )
    return write_generated(
        out / "generated", pipeline, examples,
        samples=settings.samples, seconds=seconds, seed=settings.seed,
        sampling=settings.sampling, progress=progress,
    )  # fmt: skip


def _features(
    bench: Setup,
    sets: Mapping[str, Mapping[str, str]],
    settings: EvaluationSettings,
    seconds: float,
) -> tuple[dict[str, FeatureSet], FeatureSet | None]:
    """What the classifier makes of every row, and of the training clips if copies are searched."""
    known = bench.data.where(split="train")
    with FeatureCache(bench.out / "features.sqlite") as cache:
        features = {
            row: extract(
                bench.judge, clips_of(bench.out / row, names), seconds=seconds, cache=cache
            )
            for row, names in sets.items()
        }
        if not settings.copies or settings.split == "train" or not known:
            return features, None
        clips = clips_of_data(bench.data, known)
        return features, extract(bench.judge, clips, seconds=seconds, cache=cache)


def _per_clip(
    judge: Classifier, features: Mapping[str, FeatureSet], names: Mapping[str, str]
) -> list[dict[str, Any]]:
    scores = clip_scores(judge, features["real"], features["generated"], of=names)
    return [asdict(score) | {"of": names[score.id]} for score in scores]


def _fixed(bench: Setup, settings: EvaluationSettings, seconds: float) -> dict[str, Any]:
    """What determines the sounds in the folder."""
    made = settings.model_dump(
        mode="json", exclude={"copies", "resamples", "allow_few", "caption_metrics"}
    )
    return made | {"seconds": seconds} | bench.fixed()


def parse_settings(values: Mapping[str, Any]) -> EvaluationSettings:
    """Settings from the command line's values."""
    return parse_config(EvaluationSettings, values, source="evaluate")
