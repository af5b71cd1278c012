"""Bulk generation over Ray, where it is installed (`pip install 'diffsound[cluster]'`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diffsound.batch.run import generate_batch

pytest.importorskip("ray")


def test_ray_writes_the_same_files_and_names_the_same_failures(
    tmp_path: Path, tiny_folder: Path
) -> None:
    import ray

    rows = [{"prompt": "a dog barks", "seed": 7}, {"prompt": ""}, {"prompt": "rain", "steps": 2}]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        reports = {
            engine: generate_batch(prompts, tmp_path / engine, bundle=tiny_folder, engine=engine)
            for engine in ("local", "ray")
        }
    finally:
        ray.shutdown()
    assert reports["ray"] == reports["local"]
    assert reports["ray"].made == 2
    here, there = (
        {path.name: path.read_bytes() for path in (tmp_path / engine).iterdir()}
        for engine in ("local", "ray")
    )
    assert here == there
