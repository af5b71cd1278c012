"""One command: a bundle and data in, a report out.

    report = evaluate("my-bundle", "data/mine", "out", EvaluationSettings(clips=200))
    report["rows"]["generated"]["scores"]["FID"]["value"]

All rows are scored by the same classifier against the same real clips: `vocoder` and `codec` show
what the later stages cost whatever the decoder does, `generated` shows the whole model. After an
interruption, run it again and it continues where it stopped.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from diffsound.config import Config
from diffsound.data.duplicates import MOVEMENT, movement_and_detail, near_duplicates
from diffsound.errors import InputError
from diffsound.evaluation.captions import COMPARED, METRICS, caption_comparison
from diffsound.evaluation.checks import SILENT_DB
from diffsound.evaluation.compare import clip_scores, compare
from diffsound.evaluation.features import (
    FeatureCache,
    FeatureSet,
    clips_of,
    clips_of_data,
    extract,
    extract_rows,
)
from diffsound.evaluation.metrics import Score, nearest
from diffsound.evaluation.pages import write_evaluation
from diffsound.evaluation.sets import (
    REPORT,
    Example,
    Progress,
    check_same,
    choose_examples,
    find_captioner,
    sample_names,
    set_up,
    write_copies,
    write_examples,
    write_generated,
    write_json,
    write_real,
)
from diffsound.evaluation.spice import corenlp_folder

# A clip closer to a training clip than all but this share of real unseen clips is suspicious.
SUSPICIOUS = 0.01
# Fingerprints whose detail correlates above this are one recording. Lengths cannot be compared here
# (a generated clip has its own), so it is stricter than for duplicates: of 371 unseen ESC-50 clips
# against 3 686 training clips none passes (at 0.85: four); of training clips at 0.6 of their level,
# shifted and with errors of 5 dB in every cell of the mel, 80 % do.
SAME_DETAIL = 0.9
NEAREST = 8  # neighbours that a report names and a page shows
_BLOCK = 2048


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
    measuring = {"copies", "resamples", "allow_few", "caption_metrics"}  # change no sound
    making = settings.model_dump(mode="json", exclude=measuring)
    check_same(bench.out, making | {"seconds": seconds} | bench.fixed())
    write_examples(bench.out, examples)
    write_copies(bench, examples, seconds=seconds, progress=progress)
    speed = write_generated(
        bench.out / "generated", bench.pipeline, examples,
        samples=settings.samples, seconds=seconds, seed=settings.seed,
        sampling=settings.sampling, progress=progress,
    )  # fmt: skip
    of = sample_names(examples, settings.samples)
    ids = {example.id: example.id for example in examples}
    sets = {"real": ids, "vocoder": ids, "codec": ids, "generated": of}
    known = bench.data.where(split="train")
    training = None
    with FeatureCache(bench.out / "features.sqlite") as cache:
        features = extract_rows(bench.judge, bench.out, sets, seconds, cache)
        if settings.copies and settings.split != "train" and known:
            clips = clips_of_data(bench.data, known)
            training = extract(bench.judge, clips, seconds=seconds, cache=cache)
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
    found = check_set(features["generated"], training, features["real"])
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
        "clips": clip_scores(
            bench.judge.config.labels, features["real"], features["generated"], of
        ),
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


def check_set(
    generated: FeatureSet, training: FeatureSet | None, unseen: FeatureSet
) -> dict[str, Any]:
    """Silent clips, repeated clips and, when training clips are given, copies of them, as JSON.

    unseen: real clips outside the training set; they define a normal distance to it.
    """
    found: dict[str, Any] = {
        "clips": len(generated),
        "unreadable": dict(generated.failed),
        "silent": [generated.ids[at] for at in np.flatnonzero(generated.level < SILENT_DB)],
        "duplicates": _duplicates(generated),
    }
    if training is None:
        return found
    if any(clips.classifier != generated.classifier for clips in (training, unseen)):
        raise InputError("the sets were measured by different classifiers; use one for all")
    if len(training) < 2 or not len(generated) or not len(unseen):
        raise InputError("a search for copies needs generated clips and at least 2 training clips")
    # Distances in features, each divided by its deviation over the training clips.
    scale = 1.0 / np.maximum(np.asarray(training.features).std(axis=0), 1e-6)
    known = training.features * scale
    _, normal = nearest(unseen.features * scale, known)
    threshold = float(np.quantile(normal, SUSPICIOUS))
    places, distances = nearest(generated.features * scale, known)
    same = _same_recording(generated, training)
    neighbours = [
        {
            "id": generated.ids[at],
            "nearest": training.ids[places[at]],
            "distance": float(distances[at]),
            "suspicious": bool(distances[at] < threshold),
            "same_recording": None if same[at] < 0 else training.ids[same[at]],
        }
        for at in range(len(generated))
    ]
    neighbours.sort(key=lambda one: (one["same_recording"] is None, one["distance"]))
    return found | {
        "copies": [
            {"id": one["id"], "training": one["same_recording"]}
            for one in neighbours
            if one["same_recording"] is not None
        ],
        # A share of generated clips well above that of real unseen ones means copying.
        "suspicious_share": float(np.mean([one["suspicious"] for one in neighbours])),
        "expected_share": float((normal < threshold).mean()),
        "suspicious_distance": threshold,
        "nearest": neighbours[:NEAREST],
    }


def _duplicates(clips: FeatureSet) -> list[dict[str, Any]]:
    """Groups of clips that are one sound, exactly or nearly; silent clips are not among them."""
    heard = np.flatnonzero(clips.level >= SILENT_DB)
    by_key: dict[str, list[str]] = defaultdict(list)
    for at in heard:
        by_key[clips.keys[at]].append(clips.ids[at])
    # Of identical clips, one stands for all in the search for near ones.
    first = {ids[0] for ids in by_key.values()}
    kept = [at for at in heard if clips.ids[at] in first]
    groups = near_duplicates(
        [clips.ids[at] for at in kept], clips.sounds[kept], clips.seconds[kept].tolist()
    )
    exact = [{"ids": ids, "identical": True} for ids in by_key.values() if len(ids) > 1]
    return exact + [{"ids": list(group.ids), "identical": False} for group in groups]


def _same_recording(generated: FeatureSet, training: FeatureSet) -> np.ndarray:
    """For each generated clip the training clip with its fingerprint, or -1: int [N]."""
    heard = np.asarray(generated.level) >= SILENT_DB
    known_movement, known_detail = movement_and_detail(training.sounds)
    found = np.full(len(generated), -1)
    for at in range(0, len(generated), _BLOCK):
        rows = slice(at, at + _BLOCK)
        movement, detail = movement_and_detail(generated.sounds[rows])
        moves, details = movement @ known_movement.T, detail @ known_detail.T
        likeness = np.where((moves > MOVEMENT) & (details > SAME_DETAIL), details, -1.0)
        best = likeness.argmax(axis=1)
        same = (likeness.max(axis=1) > 0) & heard[rows]
        found[rows] = np.where(same, best, -1)
    return found
