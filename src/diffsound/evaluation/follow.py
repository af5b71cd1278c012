"""Are two events, their order, number and distance heard as the text says?

    report = follow(None, "data/corpus", "out", FollowSettings(prompts=20))
    report["rows"]["generated"]["scores"]["both present"]["value"]

The classifier listens to windows of two seconds. An event counts as present if any audible window
has it among its three likeliest classes; it is where the classifier is surest of it. The measure
is rough, so it is calibrated: true scenes mixed from held-out clips of the same classes show what
it can find at all, and sounds judged by another text's events show what it finds by chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from diffsound.audio import mixing
from diffsound.audio.io import fit_length, read_audio, resample, write_audio
from diffsound.audio.mixing import decibels
from diffsound.config import Config
from diffsound.data.captions import phrase_table
from diffsound.data.loaders import item_rng
from diffsound.data.shards import PreparedData
from diffsound.data.soundscape import SceneConfig, SceneMixer
from diffsound.errors import DataError
from diffsound.evaluation.checks import SILENT_DB, third_octaves, tilt
from diffsound.evaluation.features import FeatureCache, ScoredClip, extract, file_clip, wave_clip
from diffsound.evaluation.metrics import LEVEL, mean_score, softmax
from diffsound.evaluation.onsets import count_events
from diffsound.evaluation.pages import write_follow
from diffsound.evaluation.sets import (
    REPORT,
    Example,
    Progress,
    Setup,
    check_same,
    set_up,
    write_generated,
    write_json,
)
from diffsound.files import make_folder
from diffsound.judges.classifier import Classifier
from diffsound.text.english import Phrase, phrase_of

FAR = "in the distance"
# How two events are joined, and whether that says which comes first.
JOINS = {"then": True, "while": False, "followed by": True, "before": True}
_QUIETEST = 1e-5  # RMS; silence has no level in dB
Pair = tuple[np.ndarray, np.ndarray]  # a sound near and far away


class FollowSettings(Config):
    """What is generated and how it is judged; different values need a different folder.

    prompts: texts of two events. distant: pairs of "X" and "X in the distance". window, hop:
    seconds. top: an event is heard in a window if it is among this many likeliest classes.
    """

    split: str = "valid"
    prompts: PositiveInt = 100
    distant: int = Field(default=25, ge=0)
    seconds: float = Field(default=8.0, ge=3.0)  # shorter ones have no room for two events in a row
    window: PositiveFloat = 2.0
    hop: PositiveFloat = 0.5
    top: PositiveInt = 3
    seed: int = Field(default=0, ge=0)
    sampling: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class TwoEvents:
    """A text of two events; `first` sounds before `second` if `ordered`."""

    id: str
    text: str
    join: str
    first: str
    second: str

    @property
    def ordered(self) -> bool:
        return JOINS[self.join]


@dataclass(frozen=True)
class HeardWindows:
    """The audible windows of a clip: where each begins, seconds [W], and what it may be [W, C]."""

    labels: tuple[str, ...]
    starts: np.ndarray
    probabilities: np.ndarray

    def present(self, top: int) -> set[str]:
        """The labels among the `top` likeliest of any window."""
        best = np.argsort(-self.probabilities, axis=1, kind="stable")[:, :top]
        return {self.labels[place] for place in np.unique(best)}

    def surest(self, label: str) -> float:
        """Start of the window that is surest of the label; the clip must be audible."""
        return float(self.starts[self.probabilities[:, self.labels.index(label)].argmax()])

    def names(self, top: int) -> list[str]:
        """What is heard, ordered by when it is heard most clearly."""
        return sorted(self.present(top), key=self.surest)


@dataclass(frozen=True)
class Verdict:
    """Whether each event of a task is heard, and whether in order (None if either is missing)."""

    first: bool
    second: bool
    in_order: bool | None

    @property
    def both(self) -> bool:
        return self.first and self.second


def follow(
    bundle: str | Path | None,
    data: str | Path,
    out: str | Path,
    settings: FollowSettings | None = None,
    *,
    classifier: str | Path | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Generate, mix, listen, write OUT/report.json and report.html; returns the report."""
    settings = settings or FollowSettings()
    bench = set_up(bundle, data, out, classifier=classifier, device=device)
    labels = [
        name
        for name in bench.judge.config.labels
        if clips_of_label(bench.data, settings.split, name)
    ]
    if len(labels) < 2:
        raise DataError(
            f"two events need two classes that the classifier knows and that have clips in "
            f"the '{settings.split}' split of {bench.data.folder}; it has {len(labels)}"
        )
    tasks = make_tasks(labels, settings.prompts, settings.seed)
    check_same(bench.out, settings.model_dump(mode="json") | bench.fixed())
    far = choose_events(labels, settings.distant, settings.seed)
    making: dict[str, Any] = {
        "seconds": settings.seconds,
        "seed": settings.seed,
        "sampling": settings.sampling,
        "progress": progress,
    }
    texts = [Example(task.id, task.text, (task.text,)) for task in tasks]
    write_generated(bench.out / "generated", bench.pipeline, texts, samples=1, **making)
    pairs = _write_near_and_far(bench, far, **making)
    truth = _write_scenes(bench, tasks, settings)
    with FeatureCache(bench.out / "features.sqlite") as cache:
        heard = {
            row: {
                task.id: listen(
                    bench.judge, file_clip(task.id, bench.out / row / f"{task.id}{end}.wav"),
                    window=settings.window, hop=settings.hop, cache=cache,
                )
                for task in tasks
            }
            for row, end in (("scenes", ""), ("generated", ".0"))
        }  # fmt: skip
    # By chance: every sound is judged by the next text's events, for which it was not made.
    asked = {
        "scenes": ("scenes", truth),
        "generated": ("generated", tasks),
        "chance": ("generated", [*tasks[1:], tasks[0]]),
    }
    judged = {
        row: [
            (other, judge(heard[of][task.id], other, settings.top))
            for task, other in zip(tasks, others, strict=True)
        ]
        for row, (of, others) in asked.items()
    }
    rate = bench.pipeline.sample_rate
    report = {
        "title": bench.pipeline.bundle.config.name,
        "rows": {row: _row(found, settings.seed) for row, found in judged.items()},
        "false_alarms": {
            row: _false_alarms(tasks, found, settings.top) for row, found in heard.items()
        },
        "distance": {
            "generated": _distance(pairs, rate, settings.seed),
            "scenes": _distance(
                _true_pairs(bench, far, settings.split, settings.seed), rate, settings.seed
            ),
        },
        "numbers": count_events(bench.pipeline, seed=settings.seed, sampling=settings.sampling),
        "tasks": [
            {"id": task.id, "text": task.text, "first": task.first, "second": task.second}
            | {"heard": heard["generated"][task.id].names(settings.top)}
            | {"first_present": found.first, "second_present": found.second}
            | {"in_order": found.in_order if task.ordered else None}
            for task, found in judged["generated"]
        ],
        "protocol": {
            "present": f"among the {settings.top} likeliest classes of any audible window of "
            f"{settings.window:g} s, one every {settings.hop:g} s",
            "in order": "the window surest of the first event begins before the second's",
            "scenes": "mixed from held-out clips of the same two classes",
            "chance": "generated sounds, judged by the events of another text",
            "interval": f"{LEVEL:.0%}, bootstrap over texts",
            "settings": settings.model_dump(mode="json"),
            "classes": labels,
        }
        | bench.protocol(settings.sampling),
    }
    write_json(bench.out / REPORT, report)
    write_follow(bench.out, report)
    return report


def listen(
    classifier: Classifier,
    clip: ScoredClip,
    *,
    window: float,
    hop: float,
    cache: FeatureCache | None = None,
) -> HeardWindows:
    """Run the classifier over windows of a clip, silent ones left out: it knows no silence.

    Windows are of equal length, and the last one ends with the clip.
    """
    rate = classifier.config.mel.sample_rate
    wave = clip.wave(rate)
    size, step = round(window * rate), max(1, round(hop * rate))
    last = max(0, len(wave) - size)
    starts = [*range(0, last, step), last]
    parts = (
        wave_clip(str(start), fit_length(wave[start : start + size], size), rate)
        for start in starts
    )
    found = extract(classifier, parts, cache=cache)
    audible = found.level >= SILENT_DB
    likely = softmax(found.logits[audible])
    return HeardWindows(classifier.config.labels, np.array(starts)[audible] / rate, likely)


def judge(heard: HeardWindows, task: TwoEvents, top: int) -> Verdict:
    """Whether a task's events are in what was heard."""
    present = heard.present(top)
    first, second = (name in present for name in (task.first, task.second))
    in_order = None
    if first and second:
        in_order = heard.surest(task.first) < heard.surest(task.second)
    return Verdict(first, second, in_order)


def _row(judged: Sequence[tuple[TwoEvents, Verdict]], seed: int) -> dict[str, Any]:
    """Shares over all tasks, and by join."""
    verdicts = [found for _, found in judged]
    ordered = [found for task, found in judged if task.ordered]
    shares: dict[str, list[float]] = {
        "both present": [found.both for found in verdicts],
        "an event present": [(found.first + found.second) / 2 for found in verdicts],
        "both, in order": [found.in_order is True for found in ordered],
        "in order, if both": [found.in_order is True for found in ordered if found.both],
    }
    joins: dict[str, list[bool]] = {}
    for task, found in judged:
        joins.setdefault(task.join, []).append(found.both)
    return {
        "scores": {name: _share(name, values, seed) for name, values in shares.items()},
        "clips": len(verdicts),
        "joins": {join: float(np.mean(found)) for join, found in joins.items()},
    }


def _share(name: str, values: Sequence[float], seed: int) -> dict[str, Any]:
    note = "" if values else "no text has both events"
    return mean_score(name, np.asarray(values) if values else None, note=note, seed=seed).to_json()


def _false_alarms(tasks: Sequence[TwoEvents], heard: Mapping[str, HeardWindows], top: int) -> float:
    """Share of the classes that a text does not name but that count as present in its sound."""
    shares = []
    for task in tasks:
        others = set(heard[task.id].labels) - {task.first, task.second}
        shares.append(len(others & heard[task.id].present(top)) / max(1, len(others)))
    return float(np.mean(shares))


def _write_scenes(
    bench: Setup, tasks: Sequence[TwoEvents], settings: FollowSettings
) -> list[TwoEvents]:
    """Mix OUT/scenes/ID.wav of each task's classes; returns the tasks as they truly sound.

    Mixing is cheap and a pure function of the seed, so only the files are kept.
    """
    folder, data = make_folder(bench.out / "scenes"), bench.data
    rate = data.index.mel.sample_rate
    truth = []
    for number, task in enumerate(tasks):
        config = SceneConfig(
            seconds=settings.seconds, events=(2, 2), background=0, distance=0, repetition=0,
            together=0.0 if task.ordered else 1.0,
        )  # fmt: skip
        labels = (task.first, task.second)
        clips = [i for name in labels for i in clips_of_label(data, settings.split, name)]
        mixer = SceneMixer(data, clips, config, sample_rate=rate)
        scene = mixer.scene(item_rng(settings.seed, 0, number))
        first, second = (event.label for event in sorted(scene.events, key=lambda e: e.onset))
        truth.append(TwoEvents(task.id, scene.captions[0], task.join, first, second))
        path = folder / f"{task.id}.wav"
        if not path.exists():
            write_audio(path, scene.wave, rate)
    return truth


def _write_near_and_far(
    bench: Setup, events: Sequence[tuple[str, str]], **making: Any
) -> list[Pair]:
    """Generate OUT/near and OUT/far with the same ids, hence the same seeds; returns the waves."""
    for folder, end in (("near", ""), ("far", f" {FAR}")):
        texts = [Example(f"far-{i:03d}", text + end, (text,)) for i, (_, text) in enumerate(events)]
        write_generated(bench.out / folder, bench.pipeline, texts, samples=1, **making)
    places = [
        [bench.out / folder / f"far-{number:03d}.0.wav" for folder in ("near", "far")]
        for number in range(len(events))
    ]
    rate = bench.pipeline.sample_rate
    return [(read_audio(near, rate), read_audio(far, rate)) for near, far in places]


def _true_pairs(
    bench: Setup, events: Sequence[tuple[str, str]], split: str, seed: int
) -> list[Pair]:
    """A held-out clip of each class, near and as the scene mixer moves it into the distance."""
    rate, own = bench.pipeline.sample_rate, bench.data.index.mel.sample_rate
    quieter = np.float32(decibels(-SceneConfig().distance_db))
    pairs = []
    for number, (label, _) in enumerate(events):
        rng = item_rng(seed, 0, number)
        clip = int(rng.choice(clips_of_label(bench.data, split, label)))
        wave = resample(bench.data.wave(clip), own, rate)
        far = mixing.distant(wave, rate, round(mixing.TAIL * rate), rng)
        pairs.append((wave, far * quieter))
    return pairs


def _distance(pairs: Sequence[Pair], rate: int, seed: int) -> dict[str, Any]:
    """How much quieter and duller (air takes the highs) the far sound of each pair is."""
    level = [_level(far, rate) - _level(near, rate) for near, far in pairs]
    slope = [
        tilt(third_octaves(far, rate)) - tilt(third_octaves(near, rate)) for near, far in pairs
    ]
    both = [quiet < 0 and dull < 0 for quiet, dull in zip(level, slope, strict=True)]
    found: dict[str, Any] = {"pairs": len(pairs)}
    for name, values in (("level_db", level), ("tilt_db_per_octave", slope)):
        score = mean_score(name, np.asarray(values) if values else None, seed=seed)
        found[name] = {"mean": score.value, "low": score.low, "high": score.high}
    return found | {"quieter_and_duller": float(np.mean(both)) if both else None}


def _level(wave: np.ndarray, rate: int) -> float:
    """dB of full scale, of the parts that sound."""
    return 20 * float(np.log10(max(mixing.active_rms(wave, rate), _QUIETEST)))


def clips_of_label(data: PreparedData, split: str, label: str) -> list[int]:
    """Positions of the clips of a split whose only label is this one."""
    found = data.where(split=split, labels=[label])
    return [i for i in found if data.records[i].labels == (label,)]


def event(label: str) -> Phrase:
    """A class as a statement and as a noun phrase, in the wording of captions if they know it."""
    entry = phrase_table("esc50").get(label)
    phrases = [phrase_of(text) for text in (entry["say"] if entry else [f"the sound of {label}"])]
    return next((phrase for phrase in phrases if phrase.statements), phrases[0])


def joined(first: str, second: str, join: str) -> str:
    """Two classes in one sentence: "a dog barks, then rain falls"."""
    a, b = event(first), event(second)
    stated = a.statements and b.statements and join != "followed by"
    one, other = (a.statements[0], b.statements[0]) if stated else (a.noun, b.noun)
    return f"{one}, then {other}" if join == "then" else f"{one} {join} {other}"


def make_tasks(labels: Sequence[str], count: int, seed: int = 0) -> list[TwoEvents]:
    """Texts of two different classes, the joins in rotation; a pure function of the arguments."""
    rng = np.random.default_rng(seed)
    joins = list(JOINS)
    tasks = []
    for number in range(count):
        first, second = (labels[i] for i in rng.choice(len(labels), size=2, replace=False))
        join = joins[number % len(joins)]
        tasks.append(
            TwoEvents(f"two-{number:03d}", joined(first, second, join), join, first, second)
        )
    return tasks


def choose_events(labels: Sequence[str], count: int, seed: int) -> list[tuple[str, str]]:
    """(label, sentence) of `count` classes, drawn by the seed."""
    chosen = [labels[i] for i in np.random.default_rng(seed).permutation(len(labels))[:count]]
    return [(label, (event(label).statements or (event(label).noun,))[0]) for label in chosen]
