"""A Ray cluster of two nodes, one of them killed in the middle: same bytes, nothing lost."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import soundfile
from ray.cluster_utils import Cluster

from diffsound.batch.run import generate_batch
from diffsound.data.clip import PrepareSettings
from diffsound.data.derived import tokenize
from diffsound.data.engines import RayEngine, SerialEngine
from diffsound.data.prepare import prepare
from diffsound.data.record import parse_licences
from diffsound.data.sources import open_source
from diffsound.errors import InputError
from diffsound.model.bundle import load_codec

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head and a second node, each with a raylet and workers of its own."""
    # At their usual niceness of 15 workers would wait for all other tests.
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0")
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


class Killer:
    """Kills the second node when it is first called; takes whatever progress reports."""

    def __init__(self, cluster: Cluster) -> None:
        self.calls = 0
        self._cluster = cluster
        self._node: Any = cluster.add_node(**NODE)
        cluster.wait_for_nodes(timeout=120)  # which also notices that the one before is gone
        assert self._node.any_processes_alive()

    def __call__(self, _: object) -> None:
        self.calls += 1
        if self.calls == 1:
            self._cluster.remove_node(self._node, allow_graceful=False)

    def check(self) -> None:
        """It was in the middle: more results came afterwards."""
        assert self.calls > 2
        assert not self._node.any_processes_alive()


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def sounds(tmp_path: Path) -> Path:
    folder = tmp_path / "sounds"
    folder.mkdir()
    for number in range(12):
        noise = 0.1 * np.random.default_rng(number).standard_normal(22050)
        soundfile.write(folder / f"noise {number}.wav", noise, 22050)
    return folder


def test_both_nodes_work_and_an_error_comes_through_plainly(cluster: Cluster) -> None:
    killer = Killer(cluster)

    def where(_: int) -> str:
        import time

        import ray

        time.sleep(0.5)
        return str(ray.get_runtime_context().get_node_id())

    assert len(set(RayEngine().map(where, range(8)))) == 2
    results = RayEngine().map(parse_licences, ["cc0", "cc-by", "freeware"])
    assert [next(results), next(results)] == [{"cc0"}, {"cc-by"}]
    with pytest.raises(InputError, match=r"^unknown licence 'freeware'"):
        next(results)
    killer(None)


def test_batch(cluster: Cluster, tiny_folder: Path, tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"prompt": f"rain {n}", "duration": 0.5} for n in range(24)]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"prompt": ""}]))
    make: Callable[..., Any] = partial(generate_batch, prompts, bundle=tiny_folder)
    here = make(out=tmp_path / "here")
    killer = Killer(cluster)
    there = make(out=tmp_path / "there", engine="ray", progress=killer)
    killer.check()
    assert there == here
    assert (there.made, len(there.failures)) == (24, 1)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


def test_prepare_and_tokenize(
    cluster: Cluster, sounds: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    source, settings = open_source(str(sounds)), PrepareSettings(clips_per_shard=1)
    prepare(source, tmp_path / "here", settings, SerialEngine())
    killer = Killer(cluster)
    prepare(source, tmp_path / "there", settings, RayEngine(), killer)
    killer.check()
    assert contents(tmp_path / "there") == contents(tmp_path / "here")

    load = partial(load_codec, tiny_folder)
    tokenize(tmp_path / "here", load, engine=SerialEngine())
    killer = Killer(cluster)
    tokenize(tmp_path / "there", load, engine=RayEngine(), progress=killer)
    killer.check()
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
