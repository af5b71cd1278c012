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

from diffsound.audio.io import write_audio
from diffsound.config import Config, parse_config
from diffsound.data.loaders import item_rng
from diffsound.data.shards import PreparedData
from diffsound.data.soundscape import Scene, SceneConfig, SceneMixer
from diffsound.errors import DataError
from diffsound.evaluation.bootstrap import LEVEL, bootstrap_mean
from diffsound.evaluation.clips import FileClip
from diffsound.evaluation.feature_cache import FeatureCache
from diffsound.evaluation.follow_report import write_html
from diffsound.evaluation.near_and_far import (
    choose_events,
    clips_of_label,
    distance,
    generated_pairs,
    true_pairs,
    write_near_and_far,
)
from diffsound.evaluation.prompts import joined
from diffsound.evaluation.score import Score
from diffsound.evaluation.sets import Example, Progress, make_folder, write_generated, write_json
from diffsound.evaluation.setup import Setup, check_same, set_up
from diffsound.evaluation.windows import Heard, listen

REPORT = "report.json"
# How two events are joined, and whether that says which is first.
JOINS = {"then": True, "while": False, "followed by": True, "before": True}


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
    labels = [
        name
        for name in bench.judge.config.labels
        if clips_of_label(bench.data, settings.split, name)
    ]
    if len(labels) < 2:
        raise DataError(
            f"two events need two classes of the classifier with clips in the '{settings.split}' "
            f"split of {bench.data.folder}; there are {len(labels)}"
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
    write_near_and_far(bench, far, **making)
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
    # By chance: every sound by the next text's events, for which it was not made.
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
    report = {
        "title": bench.pipeline.bundle.config.name,
        "rows": {row: _row(found, settings.seed) for row, found in judged.items()},
        "false_alarms": {
            row: _false_alarms(tasks, found, settings.top) for row, found in heard.items()
        },
        "distance": {
            "generated": distance(generated_pairs(bench, far), settings.seed),
            "scenes": distance(
                true_pairs(bench, far, settings.split, settings.seed), settings.seed
            ),
        },
        "tasks": [
            {"id": task.id, "text": task.text, "first": task.first, "second": task.second}
            | {"heard": list(_names(heard["generated"][task.id], settings.top))}
            | {"first_present": found.first, "second_present": found.second}
            | {"in_order": found.in_order if task.ordered else None}
            for task, found in judged["generated"]
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


def judge(heard: Heard, task: Task, top: int) -> Verdict:
    """Whether a task's events are in what was heard."""
    present = heard.present(top)
    first, second = (name in present for name in (task.first, task.second))
    in_order = None
    if first and second:
        in_order = heard.surest(task.first) < heard.surest(task.second)
    return Verdict(first, second, in_order)


def _row(judged: Sequence[tuple[Task, Verdict]], seed: int) -> dict[str, Any]:
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


def _write_scenes(bench: Setup, tasks: Sequence[Task], settings: FollowSettings) -> list[Task]:
    """Mix OUT/scenes/ID.wav of each task's classes; returns the tasks as they truly sound.

    Mixing is cheap and a pure function of the seed, so only the files are kept.
    """
    folder = make_folder(bench.out / "scenes")
    truth = []
    for number, task in enumerate(tasks):
        scene = _scene(bench.data, task, settings, number)
        first, second = (event.label for event in sorted(scene.events, key=lambda e: e.onset))
        truth.append(Task(task.id, scene.captions[0], task.join, first, second))
        path = folder / f"{task.id}.wav"
        if not path.exists():
            write_audio(path, scene.wave, bench.data.index.mel.sample_rate)
    return truth


def _scene(data: PreparedData, task: Task, settings: FollowSettings, number: int) -> Scene:
    config = SceneConfig(
        seconds=settings.seconds, events=(2, 2), background=0, distance=0, repetition=0,
        together=0.0 if task.ordered else 1.0,
    )  # fmt: skip
    clips = [
        i for name in (task.first, task.second) for i in clips_of_label(data, settings.split, name)
    ]
    mixer = SceneMixer(data, clips, config, sample_rate=data.index.mel.sample_rate)
    return mixer.scene(item_rng(settings.seed, 0, number))


def parse_settings(values: Mapping[str, Any]) -> FollowSettings:
    """Settings from the command line's values."""
    return parse_config(FollowSettings, values, source="follow")
