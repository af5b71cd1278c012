"""The engine: what runs together, in what order, and how it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from diffsound.errors import InputError
from diffsound.generation.edits import vary
from diffsound.generation.jobs import make_jobs
from diffsound.generation.pipeline import TextToSound
from diffsound.model.bundle import Bundle
from diffsound.serving.batching import BatchEngine
from diffsound.serving.errors import CancelledError, NotReadyError, TimedOutError, TooManyError
from diffsound.serving.tasks import Recipe, Task
from diffsound.serving.telemetry import Metrics
from serving_support import WatchedPipeline

SECONDS = 0.5


def task(
    prompt: str = "rain",
    seed: int = 0,
    candidates: int = 1,
    *,
    seconds: float = SECONDS,
    timeout: float = 60,
    make_edit: Any = None,
    **sampling: Any,
) -> Task:
    recipe = Recipe("tiny", seconds, None, sampling)
    jobs = make_jobs(prompt, candidates, seed, None)
    return Task(recipe, jobs, timeout=timeout, make_edit=make_edit)


class Bench:
    """An engine over a watched pipeline whose gate can be closed."""

    def __init__(self, pipeline: WatchedPipeline, **options: Any) -> None:
        self.pipeline = pipeline
        self.metrics = Metrics()
        settings = {"lanes": 1, "max_batch": 4, "queue": 32} | options
        self.engine = BatchEngine(lambda: {"tiny": pipeline}, metrics=self.metrics, **settings)
        self.engine.start()
        assert self.engine.settled.wait(60)
        assert self.engine.failed is None
        pipeline.calls.clear()
        while pipeline.entered.acquire(blocking=False):
            pass

    def hold(self) -> Task:
        """Close the gate with one task inside the lane."""
        self.pipeline.gate.clear()
        first = self.submit(task("first"))
        assert self.pipeline.entered.acquire(timeout=60)
        return first

    def submit(self, new: Task) -> Task:
        self.engine.submit(new)
        return new

    def release(self) -> None:
        self.pipeline.gate.set()


@pytest.fixture
def bench(watched: WatchedPipeline) -> Iterator[Bench]:
    made = Bench(watched)
    yield made
    made.release()
    made.engine.close()


def test_sounds_made_in_one_batch_are_those_made_alone(bench: Bench, pipeline: TextToSound) -> None:
    first = bench.hold()
    prompts = ["a dog", "rain on a tin roof at night", "bells"]
    tasks = [bench.submit(task(text, seed)) for seed, text in enumerate(prompts)]
    bench.release()
    made = [t.result.result(60)[0] for t in (first, *tasks)]
    assert bench.pipeline.calls == [["first"], prompts]
    for seed, (text, sound) in enumerate(zip(prompts, made[1:], strict=True)):
        (alone,) = pipeline(text, seed=seed, duration=SECONDS)
        assert np.array_equal(sound.tokens, alone.tokens)
        assert np.abs(sound.wave - alone.wave).max() < 1e-5
        assert (sound.prompt, sound.seed) == (text, seed)
        assert sound.settings == alone.settings


def test_only_compatible_requests_share_a_call(bench: Bench, pipeline: TextToSound) -> None:
    bench.hold()
    clip = pipeline("rain", seed=1, duration=SECONDS)[0]
    tasks = [
        bench.submit(task("a")),
        bench.submit(task("b", guidance_scale=1.0)),
        bench.submit(task("c", seconds=0.75)),
        bench.submit(task("d", make_edit=lambda p: vary(p.bundle, clip, 0.5))),
        bench.submit(task("e")),
    ]
    bench.release()
    for each in tasks:
        each.result.result(60)
    assert sorted(bench.pipeline.calls[1:]) == [["a", "e"], ["b"], ["c"], ["d"]]


def test_a_request_for_many_does_not_starve_the_others(bench: Bench) -> None:
    bench.hold()
    many = bench.submit(task("many", candidates=8))
    few = bench.submit(task("few"))
    bench.release()
    few.result.result(60)
    assert [s.seed for s in many.result.result(60)] == list(range(8))
    assert bench.pipeline.calls[1] == ["many", "few", "many", "many"]


def test_a_batch_has_at_most_max_batch_sounds(bench: Bench) -> None:
    bench.hold()
    tasks = [bench.submit(task(str(i))) for i in range(9)]
    bench.release()
    for each in tasks:
        each.result.result(60)
    assert [len(call) for call in bench.pipeline.calls] == [1, 4, 4, 1]


def test_lanes_run_side_by_side(watched: WatchedPipeline) -> None:
    bench = Bench(watched, lanes=2)
    watched.gate.clear()
    both = bench.submit(task("two", candidates=2))
    # Both lanes are inside the pipeline at once, with one sound each.
    assert watched.entered.acquire(timeout=60)
    assert watched.entered.acquire(timeout=60)
    bench.release()
    assert len(both.result.result(60)) == 2
    assert watched.calls == [["two"], ["two"]]
    bench.engine.close()


def test_a_full_queue_refuses_with_a_time_to_retry(watched: WatchedPipeline) -> None:
    bench = Bench(watched, queue=2)
    bench.hold()
    waiting = [bench.submit(task()) for _ in range(2)]
    with pytest.raises(TooManyError) as caught:
        bench.submit(task())
    assert caught.value.retry_after >= 1
    bench.engine.forget(waiting[0])
    bench.submit(task())  # its place is free at once
    bench.release()
    bench.engine.close()


def test_a_cancelled_task_stops_at_its_next_step(bench: Bench) -> None:
    first = bench.hold()
    steps = bench.pipeline.steps
    bench.engine.forget(first)
    with pytest.raises(CancelledError):
        first.result.result(0)
    bench.release()
    assert bench.submit(task("next")).result.result(60)
    # One step of the abandoned sound, then the three of the next.
    assert bench.pipeline.steps == steps + 1 + 3
    assert bench.metrics.stopped._value.get() == 1


def test_a_task_out_of_time_is_never_started(bench: Bench) -> None:
    bench.hold()
    late = bench.submit(task("late", timeout=0.01))
    time.sleep(0.05)
    bench.release()
    assert bench.submit(task("next")).result.result(60)
    with pytest.raises(TimedOutError):
        late.result.result(60)
    assert ["late"] not in bench.pipeline.calls


def test_a_sound_that_cannot_be_made_fails_alone(bench: Bench) -> None:
    bench.hold()
    good, bad = bench.submit(task("good")), bench.submit(task("poison"))
    bench.release()
    assert good.result.result(60)[0].prompt == "good"
    with pytest.raises(RuntimeError):
        bad.result.result(60)
    assert bench.submit(task("after")).result.result(60)


def test_an_input_error_ends_the_task_with_its_line(bench: Bench) -> None:
    with pytest.raises(InputError, match="num_inference_steps"):
        bench.submit(task(num_inference_steps=99)).result.result(60)


def test_draining_finishes_what_runs_and_refuses_the_rest(bench: Bench) -> None:
    first = bench.hold()
    waiting = bench.submit(task("waiting"))
    bench.engine.drain()
    with pytest.raises(NotReadyError):
        waiting.result.result(1)
    with pytest.raises(NotReadyError):
        bench.submit(task())
    closer = threading.Thread(target=bench.engine.close)
    closer.start()
    bench.release()
    closer.join(60)
    assert first.result.result(0)[0].prompt == "first"


def test_a_bundle_that_cannot_be_loaded_is_reported(tiny_bundle: Bundle) -> None:
    def load() -> dict[str, TextToSound]:
        raise InputError("no such bundle")

    engine = BatchEngine(load, metrics=Metrics())
    engine.start()
    assert engine.settled.wait(60)
    assert not engine.ready
    assert str(engine.failed) == "no such bundle"
    with pytest.raises(NotReadyError):
        engine.submit(task())
    engine.close()
