"""The same commands over Ray, where it is installed (`pip install 'diffsound[cluster]'`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffsound.data.clip import PrepareSettings
from diffsound.data.engines import RayEngine, SerialEngine
from diffsound.data.prepare import prepare
from diffsound.data.record import parse_licences
from diffsound.data.sources import open_source
from diffsound.errors import InputError

pytest.importorskip("ray")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_ray_gives_the_same_bytes_and_the_plain_error(
    sounds: Path, settings: PrepareSettings, tmp_path: Path
) -> None:
    import ray

    # One Ray for both parts, since starting one takes seconds.
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init("local", num_cpus=1, **quiet)
    try:
        engines = {"here": SerialEngine(), "ray": RayEngine()}
        for name, engine in engines.items():
            prepare(open_source(str(sounds)), tmp_path / name, settings, engine)
        assert contents(tmp_path / "ray") == contents(tmp_path / "here")
        results = RayEngine().map(parse_licences, ["cc0", "cc-by", "freeware"])
        assert [next(results), next(results)] == [{"cc0"}, {"cc-by"}]
        with pytest.raises(InputError, match=r"^unknown licence 'freeware'"):
            next(results)
    finally:
        ray.shutdown()
