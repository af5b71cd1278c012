import os
import sys
from collections.abc import Iterator

import pytest

from diffsound.data.engines import (
    MapEngine,
    ProcessEngine,
    RayEngine,
    SerialEngine,
    available_cores,
    make_engine,
)
from diffsound.data.record import parse_licences
from diffsound.errors import DataError, InputError, MissingExtraError

# Other processes import what they run, so it is a function of the package.
LICENCES = ["cc0", "cc-by", "bsd,mit", "gpl"]
EXPECTED = [parse_licences(text) for text in LICENCES]


@pytest.mark.parametrize("engine", [SerialEngine(), ProcessEngine(2)])
def test_results_come_in_order_and_errors_come_through(engine: MapEngine) -> None:
    results = engine.map(parse_licences, iter([*LICENCES * 5, "freeware"]))
    assert [next(results) for _ in range(20)] == EXPECTED * 5
    with pytest.raises(InputError, match=r"^unknown licence 'freeware'; known are"):
        next(results)


def test_work_is_handed_out_with_a_bounded_look_ahead() -> None:
    taken: list[int] = []

    def items() -> Iterator[str]:
        for n in range(1000):
            taken.append(n)
            yield "cc0"

    results = ProcessEngine(1).map(parse_licences, items())
    assert next(results) == {"cc0"}
    assert len(taken) < 10


def test_a_dead_worker_is_reported() -> None:
    with pytest.raises(DataError, match="a worker process ended unexpectedly"):
        list(ProcessEngine(1).map(os._exit, [3]))


def test_a_missing_ray_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'diffsound\[cluster\]'"):
        list(RayEngine().map(parse_licences, LICENCES))


def test_engines_are_chosen_by_name() -> None:
    assert isinstance(make_engine("serial"), SerialEngine)
    assert isinstance(make_engine("processes", workers=1), SerialEngine)
    assert isinstance(make_engine("processes", workers=3), ProcessEngine)
    assert isinstance(make_engine("ray", address="auto"), RayEngine)
    assert available_cores() >= 1
    with pytest.raises(InputError, match="unknown engine 'spark'"):
        make_engine("spark")
    with pytest.raises(InputError, match="at least 1"):
        make_engine(workers=0)
    with pytest.raises(InputError, match="--address belongs to --engine ray"):
        make_engine("processes", address="auto")
