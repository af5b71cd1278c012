"""Is what was asked for recognised? A classifier listens to sounds of sentences it can check.

    report = recognise(None, "data/corpus", "out", RecogniseSettings(per_class=4))
    report["rows"]["generated"]["scores"]["top-1"]["value"]

Ten sentences for each class are made into sounds; the classifier names them, and names the real
held-out clips of the same classes, as they are and passed through vocoder and codec. The real clips
say what the classifier can hear at all, so the ratio to them is the figure to read. An outside ear
(`ears.py`) can give a second opinion. Beside it: do the sounds of a class differ from each other as
real ones do, and are they clean?
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from diffsound.audio.io import read_audio
from diffsound.config import Config, parse_yaml, shown
from diffsound.data.shards import PreparedData
from diffsound.errors import ConfigError, DataError
from diffsound.evaluation.checks import (
    TOP,
    Facts,
    Named,
    Opinion,
    balanced,
    hits,
    measure_clip,
    summarise,
)
from diffsound.evaluation.ears import load_ear
from diffsound.evaluation.features import FeatureCache, FeatureSet, clips_of, extract_rows
from diffsound.evaluation.metrics import LEVEL, softmax
from diffsound.evaluation.pages import ROWS, confusion_figure, write_recognition
from diffsound.evaluation.probe import Embeddings, Probe, embed_clips, read_real_clips
from diffsound.evaluation.sets import (
    REPORT,
    Example,
    Progress,
    Setup,
    check_same,
    sample_names,
    set_up,
    write_best,
    write_copies,
    write_generated,
    write_json,
)
from diffsound.files import read_text, write_text
from diffsound.generation.settings import slug
from diffsound.text import clean_prompt


class RecogniseSettings(Config):
    """What is generated and compared; different values need a different folder.

    per_class: sentences of each class. clips: real clips of each class (None: all of the split).
    candidates, keep: sounds generated per sentence, and how many of them the bundle's ranker keeps.
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


class EarSettings(Config):
    """An outside ear, and the real clips its probe is fitted on (`probe.read_real_clips`).

    clips: an .npz of embeddings, a prepared folder or a data source; None takes the evaluation's
    data. fit, reference: names of folds or splits.
    """

    plug: str
    clips: str | None = None
    fit: tuple[str, ...] = ()
    reference: tuple[str, ...] = ()


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
    ear: EarSettings | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Generate, listen, write OUT/report.json, report.html, confusion-*.csv and confusion.png.

    captioner: a run that chooses among candidates; by default the bundle's. prompts: a YAML file
    of sentences by class, for a classifier with other classes than ESC-50's. ear: a second
    opinion, under "ear" in the report, with confusion matrices of its own.
    """
    settings = settings or RecogniseSettings()
    bench = set_up(bundle, data, out, classifier=classifier, ranker=captioner, device=device)
    plug = None if ear is None else load_ear(ear.plug)  # a bad plug is refused before generating
    asked = ask(read_prompts(prompts), bench.judge.config.labels, bench.data, settings)
    check_same(bench.out, settings.model_dump(mode="json") | bench.fixed())
    with FeatureCache(bench.out / "features.sqlite") as cache:
        probe = None
        if ear is not None and plug is not None:
            real = read_real_clips(
                ear.clips or data, plug,
                fit=ear.fit, reference=ear.reference, cache=cache, progress=progress,
            )  # fmt: skip
            probe = Probe(real)
        names = make_sets(bench, asked, settings, progress)
        heard = extract_rows(bench.judge, bench.out, names, settings.seconds, cache)
        by_ear = {
            row: embed_clips(
                plug, clips_of(bench.out / row, of), cache=cache, progress=progress, what=row
            )
            for row, of in names.items()
            if plug is not None
        }
    own = _own_opinion(asked, names, heard, settings.seed)
    report = {
        "title": bench.pipeline.bundle.config.name,
        **own.to_json(),
        "cleanliness": _cleanliness(bench, names),
        "clips": _clips(asked, heard["generated"]),
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
    for entry in report["classes"]:
        entry["example"] = next(
            clip.id for clip in asked.real if asked.labels[asked.of[clip.id]] == entry["label"]
        )
    pictures = {"own": write_confusion(bench.out, "confusion", own)}
    if ear is not None and plug is not None and probe is not None:
        opinion, unknown = _ear_opinion(asked, names, by_ear, probe, settings.seed)
        report["ear"] = {
            "name": plug.name,
            "sha256": plug.sha256,
            **opinion.to_json(),
            "probe": {
                "source": Path(ear.clips or data).name,
                **probe.real.parts,
                "fitted": int(probe.real.fit.sum()),
                "held": int(probe.real.reference.sum()),
                "scores": {name: one.to_json() for name, one in probe.real_figures().items()},
            },
            "averaged": "over clips",
            "left_out": unknown,
            "unreadable": {row: found.failed for row, found in by_ear.items()},
        }
        pictures["ear"] = write_confusion(bench.out, "ear-confusion", opinion)
    write_json(bench.out / REPORT, report)
    write_recognition(bench.out, report, pictures)
    return report


def ask(
    prompts: Mapping[str, Sequence[str]],
    labels: Sequence[str],
    data: PreparedData,
    settings: RecogniseSettings,
) -> Asked:
    """The classes with sentences, real clips and a place in the classifier; others are named."""
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
    """Write the missing sounds of every row; returns their names with their classes, by row."""
    out, pipeline = bench.out, bench.pipeline
    if settings.candidates > 1:
        pipeline.check_keep(settings.keep, settings.candidates)
    write_copies(bench, asked.real, seconds=settings.seconds, progress=progress)
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


def _own_opinion(
    asked: Asked, names: Mapping[str, Mapping[str, int]], heard: Mapping[str, FeatureSet], seed: int
) -> Opinion:
    """By the classifier; shares are averaged over classes."""
    named, targets, scores = {}, {}, {}
    for row, found in heard.items():
        named[row] = Named(found.ids, found.features, found.logits)
        targets[row] = of = np.array([names[row][name] for name in found.ids], dtype=int)
        scores[row] = {
            f"top-{k}": balanced(hits(found.logits, of, k), of, f"top-{k}", seed) for k in TOP
        }
    return Opinion(asked.labels, asked.classes, named, targets, scores)


def _ear_opinion(
    asked: Asked,
    names: Mapping[str, Mapping[str, int]],
    heard: Mapping[str, Embeddings],
    probe: Probe,
    seed: int,
) -> tuple[Opinion, list[str]]:
    """By an outside ear; shares are averaged over clips. Also the classes its probe lacks."""
    places = probe.places([asked.labels[at] for at in asked.classes])
    place = dict(zip(asked.classes, places.tolist(), strict=True))
    unknown = [asked.labels[of] for of, at in place.items() if at < 0]
    if len(unknown) == len(place):
        raise DataError(
            f"the probe knows none of the classes asked for; it knows: {', '.join(probe.labels)}"
        )
    named: dict[str, Named] = {}
    targets, scores = {}, {}
    for row, found in heard.items():
        of = np.array([place[names[row][name]] for name in found.ids])
        ids = tuple(name for name, at in zip(found.ids, of, strict=True) if at >= 0)
        vectors, targets[row] = found.vectors[of >= 0], of[of >= 0]
        named[row] = Named(ids, vectors, probe.scores(vectors))
        scores[row] = probe.figures(vectors, targets[row], seed=seed)
    classes = tuple(at for at in place.values() if at >= 0)
    return Opinion(probe.labels, classes, named, targets, scores), unknown


def write_confusion(out: Path, name: str, opinion: Opinion) -> Path:
    """Write OUT/NAME-real.csv and OUT/NAME-generated.csv, and both as OUT/NAME.png."""
    classes = [opinion.labels[place] for place in opinion.classes]
    counts = {row: opinion.confusion(row) for row in ("real", "generated")}
    for row, table in counts.items():
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(["asked", *opinion.labels])
        writer.writerows([one, *line] for one, line in zip(classes, table.tolist(), strict=True))
        write_text(out / f"{name}-{row}.csv", buffer.getvalue(), newline="")
    titled = {ROWS[row]: table for row, table in counts.items()}
    return confusion_figure(out / f"{name}.png", classes, opinion.labels, titled)


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


def _cleanliness(bench: Setup, names: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    rate, bundle = bench.pipeline.sample_rate, bench.pipeline.bundle
    measured: dict[str, dict[str, list[Facts]]] = {row: {} for row in names}
    for row, of in names.items():
        for name, place in of.items():
            wave = read_audio(bench.out / row / f"{name}.wav", rate)
            facts = measure_clip(wave, rate, bundle.mel_front_end, bundle.codec.time_stride)
            measured[row].setdefault(bench.judge.config.labels[place], []).append(facts)
    real = measured["real"]
    return {
        row: summarise(found, None if row == "real" else real) for row, found in measured.items()
    }


def read_prompts(path: str | Path | None = None) -> dict[str, list[str]]:
    """Sentences by class: from a YAML file (`class: [sentence, …]`), or ours for ESC-50."""
    source = resources.files(__package__) / "prompts.yaml" if path is None else Path(path)
    try:
        content = parse_yaml(source.read_text("utf-8") if path is None else read_text(path))
    except (OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"the prompts in {source} cannot be read: {reason}") from error
    if not isinstance(content, dict) or not content:
        raise ConfigError(f"{source} must hold sentences by class: 'dog: [a dog barks, …]'")
    for label, sentences in content.items():
        texts = isinstance(sentences, list) and all(isinstance(text, str) for text in sentences)
        if not isinstance(label, str) or not texts or not sentences:
            raise ConfigError(f"{source}: '{shown(label)}' must have a list of sentences")
    return {label: [clean_prompt(text) for text in texts] for label, texts in content.items()}
