"""Is what was asked for recognised? A classifier listens to sounds of sentences it can check.

    report = recognise(None, "data/corpus", "out", RecogniseSettings(per_class=4))
    report["rows"]["generated"]["scores"]["top-1"]["value"]

Ten sentences for each class are made into sounds; the classifier names them, and names the real
held-out clips of the same classes, alone and passed through vocoder and codec. The real clips say
what the classifier can hear at all, so the ratio to them is the figure to read. Beside it: do the
sounds of a class differ from each other as real ones do, and are they clean. Resumed like
`evaluate run`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from diffsound.config import Config, parse_config
from diffsound.data.shards import PreparedData
from diffsound.errors import DataError
from diffsound.evaluation import cleanliness
from diffsound.evaluation.bootstrap import LEVEL
from diffsound.evaluation.class_scores import balanced, confusion, hits, spread
from diffsound.evaluation.clips import FileClip
from diffsound.evaluation.compare import softmax
from diffsound.evaluation.feature_cache import FeatureCache
from diffsound.evaluation.features import FeatureSet, extract
from diffsound.evaluation.prompts import read_prompts
from diffsound.evaluation.recognise_report import write_confusion, write_html
from diffsound.evaluation.sets import (
    Example,
    Progress,
    clips_of,
    sample_names,
    write_best,
    write_generated,
    write_json,
    write_passed,
    write_real,
)
from diffsound.evaluation.setup import Setup, check_same, set_up
from diffsound.names import slug

REPORT = "report.json"
TOP = (1, 5)


class RecogniseSettings(Config):
    """What is generated and compared; another value needs another folder.

    per_class: sentences of each class. clips: real clips of each class (None: all of the split).
    candidates, keep: of so many sounds per sentence, so many are kept by the bundle's ranker.
    """

    split: str = "valid"
    per_class: PositiveInt = 10
    clips: PositiveInt | None = None
    seconds: PositiveFloat = 5.0
    seed: int = Field(default=0, ge=0)
    candidates: PositiveInt = 1
    keep: PositiveInt = 1
    sampling: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> RecogniseSettings:
        if self.keep > self.candidates:
            raise ValueError(f"keep {self.keep} is more than the {self.candidates} candidates")
        return self


@dataclass(frozen=True)
class Asked:
    """What is asked for and what it is compared with; classes are places in `labels`.

    of: the class of each real clip and of each sentence, by id.
    """

    labels: tuple[str, ...]
    classes: tuple[int, ...]
    sentences: list[Example]
    real: list[Example]
    of: dict[str, int]
    left_out: dict[str, str]


def recognise(
    bundle: str | Path | None,
    data: str | Path,
    out: str | Path,
    settings: RecogniseSettings | None = None,
    *,
    classifier: str | Path | None = None,
    captioner: str | Path | None = None,
    prompts: str | Path | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Generate, listen, write OUT/report.json, report.html, confusion-*.csv and confusion.png.

    captioner: a run that chooses among candidates; else the bundle's. prompts: a YAML file of
    sentences by class, for a classifier with other classes than ESC-50's.
    """
    settings = settings or RecogniseSettings()
    bench = set_up(bundle, data, out, classifier=classifier, ranker=captioner, device=device)
    asked = ask(read_prompts(prompts), bench.judge.config.labels, bench.data, settings)
    check_same(bench.out, settings.model_dump(mode="json") | bench.fixed())
    names = make_sets(bench, asked, settings, progress)
    with FeatureCache(bench.out / "features.sqlite") as cache:
        heard = {
            row: extract(
                bench.judge, clips_of(bench.out / row, of), seconds=settings.seconds, cache=cache
            )
            for row, of in names.items()
        }
    targets = {
        row: np.array([names[row][name] for name in found.ids], dtype=int)
        for row, found in heard.items()
    }
    report: dict[str, Any] = {
        "title": bench.pipeline.bundle.config.name,
        "rows": {
            row: {"scores": _scores(heard[row], targets[row], settings.seed), "clips": len(found)}
            for row, found in heard.items()
        },
        "classes": _classes(asked, heard, targets),
        "spread": spread(heard["real"], targets["real"], heard["generated"], targets["generated"]),
        "cleanliness": _clean(bench, names),
        "clips": _clips(asked, heard["generated"]),
        "confusions": _confusions(asked, heard["generated"], targets["generated"]),
        "unreadable": {row: dict(found.failed) for row, found in heard.items()},
        "protocol": {
            "real_set": f"{settings.split} split of {bench.data.folder.name}",
            "sentences": len(asked.sentences),
            "settings": settings.model_dump(mode="json"),
            "averaged": "over classes, each class counting the same",
            "interval": f"{LEVEL:.0%}, bootstrap over classes and the clips of each",
            "left_out": asked.left_out,
        }
        | bench.protocol(settings.sampling),
    }
    report["ratios"] = _ratios(report["rows"])
    write_confusion(bench.out, asked.labels, asked.classes, {
        row: confusion(heard[row], targets[row], asked.classes) for row in ("real", "generated")
    })  # fmt: skip
    write_json(bench.out / REPORT, report)
    write_html(bench.out, report)
    return report


def ask(
    prompts: Mapping[str, Sequence[str]],
    labels: Sequence[str],
    data: PreparedData,
    settings: RecogniseSettings,
) -> Asked:
    """The classes with sentences, real clips and a name the classifier knows; others are named."""
    real: dict[str, list[Example]] = {}
    for record in (data.records[i] for i in data.where(split=settings.split)):
        if len(record.labels) == 1:
            one = Example(record.id, record.captions[0] if record.captions else "", record.captions)
            real.setdefault(record.labels[0], []).append(one)
    left_out = {name: "the classifier does not know it" for name in prompts if name not in labels}
    left_out |= {name: "there are no sentences for it" for name in labels if name not in prompts}
    asked = [name for name in labels if name in prompts]
    left_out |= {name: f"no clip in {settings.split}" for name in asked if name not in real}
    classes = [name for name in asked if name in real]
    if not classes:
        raise DataError(
            f"no class has sentences, a place in the classifier and a clip in the "
            f"'{settings.split}' split of {data.folder}"
        )
    found = Asked(tuple(labels), tuple(map(labels.index, classes)), [], [], {}, left_out)
    rng = np.random.default_rng(settings.seed)
    for place, name in zip(found.classes, classes, strict=True):
        for number, text in enumerate(prompts[name][: settings.per_class]):
            found.sentences.append(Example(f"{slug(name)}-{number:02d}", text, (text,)))
            found.of[found.sentences[-1].id] = place
        clips = real[name]
        count = min(settings.clips or len(clips), len(clips))
        chosen = sorted(rng.choice(len(clips), size=count, replace=False).tolist())
        found.real.extend(clips[i] for i in chosen)
        found.of.update({clips[i].id: place for i in chosen})
    return found


def make_sets(
    bench: Setup, asked: Asked, settings: RecogniseSettings, progress: Progress | None
) -> dict[str, dict[str, int]]:
    """Write the sounds of every row that are not there yet: names with their classes, by row."""
    out, pipeline = bench.out, bench.pipeline
    if settings.candidates > 1:
        pipeline.check_keep(settings.keep, settings.candidates)
    write_real(
        out / "real", bench.data, asked.real,
        rate=pipeline.sample_rate, seconds=settings.seconds, progress=progress,
    )  # fmt: skip
    for through in ("vocoder", "codec"):
        write_passed(
            out / through, out / "real", pipeline, asked.real, through=through, progress=progress
        )
    common: dict[str, Any] = {
        "seconds": settings.seconds,
        "seed": settings.seed,
        "sampling": settings.sampling,
        "progress": progress,
    }
    folder = out / "generated"
    if settings.candidates > 1:
        write_best(
            folder, pipeline, asked.sentences,
            candidates=settings.candidates, keep=settings.keep, **common,
        )  # fmt: skip
    else:
        write_generated(folder, pipeline, asked.sentences, samples=1, **common)
    real = {example.id: asked.of[example.id] for example in asked.real}
    made = sample_names(asked.sentences, settings.keep)
    return {
        "real": real,
        "vocoder": real,
        "codec": real,
        "generated": {name: asked.of[of] for name, of in made.items()},
    }


def _scores(found: FeatureSet, targets: np.ndarray, seed: int) -> dict[str, Any]:
    return {
        f"top-{k}": balanced(hits(found.logits, targets, k), targets, f"top-{k}", seed).to_json()
        for k in TOP
    }


def _ratios(rows: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Every row's scores over the real clips'."""
    real = {name: score["value"] for name, score in rows["real"]["scores"].items()}
    return {
        row: {
            name: score["value"] / real[name] if real[name] else None
            for name, score in found["scores"].items()
        }
        for row, found in rows.items()
        if row != "real"
    }


def _classes(
    asked: Asked, heard: Mapping[str, FeatureSet], targets: Mapping[str, np.ndarray]
) -> list[dict[str, Any]]:
    """Each class's shares of hits, the worst of the generated ones first."""
    found = []
    for place in asked.classes:
        example = next(clip.id for clip in asked.real if asked.of[clip.id] == place)
        entry: dict[str, Any] = {"label": asked.labels[place], "example": example}
        for row in ("real", "codec", "generated"):
            mine = targets[row] == place
            logits = np.asarray(heard[row].logits)[mine]
            entry[row] = {"clips": int(mine.sum())} | {
                f"top-{k}": float(hits(logits, targets[row][mine], k).mean())
                if len(logits)
                else 0.0
                for k in TOP
            }
        guesses = np.argmax(heard["generated"].logits[targets["generated"] == place], axis=1)
        entry["heard_as"] = _counts(asked.labels, guesses)
        found.append(entry)
    return sorted(found, key=lambda one: (one["generated"]["top-1"], one["generated"]["top-5"]))


def _clips(asked: Asked, found: FeatureSet) -> list[dict[str, Any]]:
    """What each generated sound was asked to be and what it is heard as."""
    texts = {example.id: example.caption for example in asked.sentences}
    likely = softmax(found.logits)
    return [
        {
            "id": name,
            "prompt": texts[sentence],
            "asked": asked.labels[asked.of[sentence]],
            "heard": asked.labels[int(line.argmax())],
            "probability": float(line.max()),
        }
        for name, line in zip(found.ids, likely, strict=True)
        for sentence in (name.rpartition(".")[0],)
    ]


def _confusions(asked: Asked, found: FeatureSet, targets: np.ndarray) -> list[dict[str, Any]]:
    """The pairs most often confused: asked for, heard as, how often."""
    counts = confusion(found, targets, asked.classes)
    pairs: list[dict[str, Any]] = [
        {"asked": asked.labels[place], "heard": asked.labels[guess], "times": int(times)}
        for place, line in zip(asked.classes, counts, strict=True)
        for guess, times in enumerate(line)
        if times and guess != place
    ]
    return sorted(pairs, key=lambda pair: -pair["times"])[:20]


def _clean(bench: Setup, names: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    measured = {row: _facts(bench, row, of) for row, of in names.items()}
    real = measured["real"]
    return {
        row: cleanliness.summary(found, None if row == "real" else real)
        for row, found in measured.items()
    }


def _facts(bench: Setup, row: str, of: Mapping[str, int]) -> dict[str, list[cleanliness.Facts]]:
    rate, bundle = bench.pipeline.sample_rate, bench.pipeline.bundle
    columns = cleanliness.Columns(bundle.mel_front_end, bundle.codec.time_stride)
    found: dict[str, list[cleanliness.Facts]] = {}
    for name, place in of.items():
        wave = FileClip(name, bench.out / row / f"{name}.wav").wave(rate)
        found.setdefault(bench.judge.config.labels[place], []).append(
            cleanliness.measure(wave, rate, columns)
        )
    return found


def _counts(labels: Sequence[str], guesses: np.ndarray) -> dict[str, int]:
    places, counts = np.unique(guesses, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return {labels[places[i]]: int(counts[i]) for i in order}


def parse_settings(values: Mapping[str, Any]) -> RecogniseSettings:
    """Settings from the command line's values."""
    return parse_config(RecogniseSettings, values, source="recognise")
