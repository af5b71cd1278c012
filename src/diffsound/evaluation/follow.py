"""Are two events, their order and their distance heard as the text says?

    report = follow(None, "data/corpus", "out", FollowSettings(prompts=20))
    report["rows"]["generated"]["scores"]["both present"]["value"]

The classifier listens to windows of two seconds. An event counts as present if any audible window
has it among its three likeliest classes; it is where the classifier is surest of it. That is a
rough measure, so it is calibrated: on true scenes mixed from held-out clips of the same classes it
says what it can find at all, and on sounds scored by another text's events what it finds by chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from diffsound.audio.io import resample, write_audio
from diffsound.config import Config, parse_config
from diffsound.data import scene_effects
from diffsound.data.augment import decibels
from diffsound.data.english import Phrase, phrase_of
from diffsound.data.loaders import item_rng
from diffsound.data.shards import PreparedData
from diffsound.data.soundscape import Scene, SceneConfig, SceneMixer
from diffsound.data.titles import phrase_table
from diffsound.errors import DataError
from diffsound.evaluation.bootstrap import LEVEL, bootstrap_mean
from diffsound.evaluation.cleanliness import third_octaves, tilt
from diffsound.evaluation.clips import FileClip
from diffsound.evaluation.feature_cache import FeatureCache
from diffsound.evaluation.follow_report import write_html
from diffsound.evaluation.score import Score
from diffsound.evaluation.sets import Example, Progress, make_folder, write_generated, write_json
from diffsound.evaluation.setup import Setup, check_same, set_up
from diffsound.evaluation.windows import Heard, listen

REPORT = "report.json"
# How two events are joined, and whether that says which is first.
JOINS = {"then": True, "while": False, "followed by": True, "before": True}
FAR = "in the distance"


class FollowSettings(Config):
    """What is generated and how it is judged; another value needs another folder.

    prompts: texts of two events. distant: pairs of "X" and "X in the distance". window, hop:
    seconds. top: an event among so many likeliest classes of a window is heard in it.
    """

    split: str = "valid"
    prompts: PositiveInt = 100
    distant: int = Field(default=25, ge=0)
    seconds: float = Field(default=8.0, ge=3.0)  # less has no room for one event after another
    window: PositiveFloat = 2.0
    hop: PositiveFloat = 0.5
    top: PositiveInt = 3
    seed: int = Field(default=0, ge=0)
    sampling: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class Task:
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
    labels = [name for name in bench.judge.config.labels if _clips(bench.data, settings, name)]
    if len(labels) < 2:
        raise DataError(
            f"two events need two classes of the classifier with clips in the '{settings.split}' "
            f"split of {bench.data.folder}; there are {len(labels)}"
        )
    tasks = make_tasks(labels, settings.prompts, settings.seed)
    check_same(bench.out, settings.model_dump(mode="json") | bench.fixed())
    far = _distant_texts(labels, settings)
    texts = [Example(task.id, task.text, (task.text,)) for task in tasks]
    write_generated(
        bench.out / "generated", bench.pipeline, texts,
        samples=1, seconds=settings.seconds, seed=settings.seed,
        sampling=settings.sampling, progress=progress,
    )  # fmt: skip
    _write_distant(bench, far, settings, progress)
    truth = _write_scenes(bench, tasks, settings)
    with FeatureCache(bench.out / "features.sqlite") as cache:
        heard = {
            row: {
                task.id: listen(
                    bench.judge, FileClip(task.id, bench.out / row / f"{task.id}{end}.wav"),
                    window=settings.window, hop=settings.hop, cache=cache,
                )
                for task in tasks
            }
            for row, end in (("scenes", ""), ("generated", ".0"))
        }  # fmt: skip
    # Every sound by the next text's events: what is "found" in sounds made for something else.
    others = dict(zip((task.id for task in tasks), [*tasks[1:], tasks[0]], strict=True))
    verdicts = {
        "scenes": [judge(heard["scenes"][task.id], truth[task.id], settings.top) for task in tasks],
        "generated": [judge(heard["generated"][task.id], task, settings.top) for task in tasks],
        "chance": [
            judge(heard["generated"][task.id], others[task.id], settings.top) for task in tasks
        ],
    }
    report = {
        "title": bench.pipeline.bundle.config.name,
        "rows": {row: _row(tasks, found, settings.seed) for row, found in verdicts.items()},
        "false_alarms": {
            row: _false_alarms(tasks, found, settings.top) for row, found in heard.items()
        },
        "distance": {
            "generated": _distance(_distant_pairs(bench, far), settings.seed),
            "scenes": _distance(_true_pairs(bench, far, settings), settings.seed),
        },
        "tasks": [
            {"id": task.id, "text": task.text, "first": task.first, "second": task.second}
            | {"heard": list(_names(heard["generated"][task.id], settings.top))}
            | {"first_present": found.first, "second_present": found.second}
            | {"in_order": found.in_order if task.ordered else None}
            for task, found in zip(tasks, verdicts["generated"], strict=True)
        ],
        "protocol": {
            "present": f"among the {settings.top} likeliest classes of any audible window of "
            f"{settings.window:g} s, one every {settings.hop:g} s",
            "in order": "the window surest of the first event begins before the second's",
            "scenes": "mixed from held-out clips of the same two classes",
            "chance": "generated sounds by the events of another text",
            "interval": f"{LEVEL:.0%}, bootstrap over texts",
            "settings": settings.model_dump(mode="json"),
            "classes": labels,
        }
        | bench.protocol(settings.sampling),
    }
    write_json(bench.out / REPORT, report)
    write_html(bench.out, report)
    return report


def make_tasks(labels: Sequence[str], count: int, seed: int = 0) -> list[Task]:
    """Texts of two different classes, the joins in turn; a pure function of the arguments."""
    rng = np.random.default_rng(seed)
    joins = list(JOINS)
    tasks = []
    for number in range(count):
        first, second = (labels[i] for i in rng.choice(len(labels), size=2, replace=False))
        join = joins[number % len(joins)]
        tasks.append(Task(f"two-{number:03d}", joined(first, second, join), join, first, second))
    return tasks


def joined(first: str, second: str, join: str) -> str:
    """Two classes in one sentence: "a dog barks, then rain falls"."""
    a, b = event(first), event(second)
    stated = a.statements and b.statements and join != "followed by"
    one, other = (a.statements[0], b.statements[0]) if stated else (a.noun, b.noun)
    return f"{one}, then {other}" if join == "then" else f"{one} {join} {other}"


def event(label: str) -> Phrase:
    """A class as statement and as thing heard, in the wording of captions if they know it."""
    entry = phrase_table("esc50").get(label)
    phrases = [phrase_of(text) for text in (entry["say"] if entry else [f"the sound of {label}"])]
    return next((phrase for phrase in phrases if phrase.statements), phrases[0])


def judge(heard: Heard, task: Task, top: int) -> Verdict:
    """Whether a task's events are in what was heard."""
    present = heard.present(top)
    first, second = (name in present for name in (task.first, task.second))
    in_order = None
    if first and second:
        in_order = heard.surest(task.first) < heard.surest(task.second)
    return Verdict(first, second, in_order)


def _row(tasks: Sequence[Task], verdicts: Sequence[Verdict], seed: int) -> dict[str, Any]:
    """Shares over all tasks, and by join."""
    ordered = [found for task, found in zip(tasks, verdicts, strict=True) if task.ordered]
    shares = {
        "both present": [found.both for found in verdicts],
        "an event present": [(found.first + found.second) / 2 for found in verdicts],
        "both, in order": [found.in_order is True for found in ordered],
        "in order, if both": [found.in_order is True for found in ordered if found.both],
    }
    return {
        "scores": {name: _share(name, values, seed) for name, values in shares.items()},
        "clips": len(verdicts),
        "joins": {
            join: float(
                np.mean([f.both for t, f in zip(tasks, verdicts, strict=True) if t.join == join])
            )
            for join in dict.fromkeys(task.join for task in tasks)
        },
    }


def _share(name: str, values: Sequence[float], seed: int) -> dict[str, Any]:
    if not values:
        return Score(name, None, "higher", note="no text has both events").to_json()
    numbers = np.asarray(values, dtype=np.float64)
    interval = bootstrap_mean(numbers, seed=seed)
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return Score(name, float(numbers.mean()), "higher", low, high).to_json()


def _false_alarms(tasks: Sequence[Task], heard: Mapping[str, Heard], top: int) -> float:
    """Share of the classes a text does not name that count as present in its sound."""
    shares = []
    for task in tasks:
        others = set(heard[task.id].labels) - {task.first, task.second}
        shares.append(len(others & heard[task.id].present(top)) / max(1, len(others)))
    return float(np.mean(shares))


def _names(heard: Heard, top: int) -> list[str]:
    """What is heard, in the order in which it is heard most surely."""
    return sorted(heard.present(top), key=heard.surest)


def _clips(data: PreparedData, settings: FollowSettings, label: str) -> list[int]:
    found = data.where(split=settings.split, labels=[label])
    return [i for i in found if data.records[i].labels == (label,)]


def _write_scenes(bench: Setup, tasks: Sequence[Task], settings: FollowSettings) -> dict[str, Task]:
    """Mix OUT/scenes/ID.wav of each task's classes; returns the tasks as they truly sound.

    Mixing is cheap and a pure function of the seed, so only the files are kept.
    """
    folder = make_folder(bench.out / "scenes")
    truth = {}
    for number, task in enumerate(tasks):
        scene = _scene(bench.data, task, settings, number)
        first, second = (event.label for event in sorted(scene.events, key=lambda e: e.onset))
        truth[task.id] = Task(task.id, scene.captions[0], task.join, first, second)
        path = folder / f"{task.id}.wav"
        if not path.exists():
            write_audio(path, scene.wave, bench.data.index.mel.sample_rate)
    return truth


def _scene(data: PreparedData, task: Task, settings: FollowSettings, number: int) -> Scene:
    config = SceneConfig(
        seconds=settings.seconds, events=(2, 2), background=0, distance=0, repetition=0,
        together=0.0 if task.ordered else 1.0,
    )  # fmt: skip
    clips = [i for name in (task.first, task.second) for i in _clips(data, settings, name)]
    mixer = SceneMixer(data, clips, config, sample_rate=data.index.mel.sample_rate)
    return mixer.scene(item_rng(settings.seed, 0, number))


def _distant_texts(labels: Sequence[str], settings: FollowSettings) -> list[tuple[str, str]]:
    """(label, statement) of the classes that are asked for near and far."""
    order = np.random.default_rng(settings.seed).permutation(len(labels))
    chosen = [labels[i] for i in order[: settings.distant]]
    return [(label, (event(label).statements or (event(label).noun,))[0]) for label in chosen]


def _write_distant(
    bench: Setup,
    far: Sequence[tuple[str, str]],
    settings: FollowSettings,
    progress: Progress | None,
) -> None:
    """OUT/near and OUT/far: the same ids, so the same seeds, with and without the distance."""
    for folder, end in (("near", ""), ("far", f" {FAR}")):
        texts = [Example(f"far-{i:03d}", text + end, (text,)) for i, (_, text) in enumerate(far)]
        write_generated(
            bench.out / folder, bench.pipeline, texts,
            samples=1, seconds=settings.seconds, seed=settings.seed,
            sampling=settings.sampling, progress=progress,
        )  # fmt: skip


Pair = tuple[np.ndarray, np.ndarray, int]  # near, far, rate


def _distant_pairs(bench: Setup, far: Sequence[tuple[str, str]]) -> list[Pair]:
    rate = bench.pipeline.sample_rate
    folders = (bench.out / "near", bench.out / "far")
    names = [f"far-{i:03d}.0" for i in range(len(far))]
    return [
        (*(FileClip(name, folder / f"{name}.wav").wave(rate) for folder in folders), rate)  # type: ignore[misc]
        for name in names
    ]


def _true_pairs(
    bench: Setup, far: Sequence[tuple[str, str]], settings: FollowSettings
) -> list[Pair]:
    """A held-out clip of each class, and it as the mixer sends it into the distance."""
    rate, own = bench.pipeline.sample_rate, bench.data.index.mel.sample_rate
    pairs = []
    for number, (label, _) in enumerate(far):
        rng = item_rng(settings.seed, 1, number)
        clip = int(rng.choice(_clips(bench.data, settings, label)))
        wave = resample(bench.data.wave(clip), own, rate)
        away = scene_effects.distant(wave, rate, round(0.4 * rate), rng)
        quieter = np.float32(decibels(-SceneConfig().distance_db))
        pairs.append((wave, away * quieter, rate))
    return pairs


def _distance(pairs: Sequence[Pair], seed: int) -> dict[str, Any]:
    """How much quieter and duller the far one of each pair is."""
    level = [_level(far, rate) - _level(near, rate) for near, far, rate in pairs]
    slope = [
        tilt(third_octaves(far, rate)) - tilt(third_octaves(near, rate))
        for near, far, rate in pairs
    ]
    found: dict[str, Any] = {"pairs": len(pairs)}
    for name, values in (("level_db", level), ("tilt_db_per_octave", slope)):
        interval = bootstrap_mean(np.asarray(values), seed=seed) if len(values) > 1 else None
        found[name] = {
            "mean": float(np.mean(values)) if values else None,
            "low": None if interval is None else interval.low,
            "high": None if interval is None else interval.high,
        }
    both = [quiet < 0 and dull < 0 for quiet, dull in zip(level, slope, strict=True)]
    found["quieter_and_duller"] = float(np.mean(both)) if both else None
    return found


def _level(wave: np.ndarray, rate: int) -> float:
    return 20 * float(np.log10(max(scene_effects.active_rms(wave, rate), 1e-5)))


def parse_settings(values: Mapping[str, Any]) -> FollowSettings:
    """Settings from the command line's values."""
    return parse_config(FollowSettings, values, source="follow")
