"""Scenes written once: a prepared folder like any other, with timeline and credits in it."""

from __future__ import annotations

import numpy as np
import pytest

from diffsound.audio.mel import MelConfig
from diffsound.data.clip import PreparedClip, PrepareSettings
from diffsound.data.loaders import item_rng
from diffsound.data.prepare import write_clips
from diffsound.data.record import AudioLocation, Record
from diffsound.data.shards import PreparedData
from diffsound.data.soundscape import SceneConfig, SceneMixer, write_scenes
from diffsound.errors import ConfigError, DataError

RATE = 8000
MEL = MelConfig(sample_rate=RATE, n_fft=512, hop_length=128, n_mels=16, fmin=50, fmax=3800)
CONFIG = SceneConfig(seconds=2.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> PreparedData:
    rng = np.random.default_rng(0)
    clips = [
        PreparedClip(
            Record(
                id=f"{name}-1",
                audio=AudioLocation(""),
                captions=(f"a {name} rings",),
                labels=(name,),
                split="valid" if name == "gong" else "train",
                licence=licence,
                author=f"maker of {name}",
                title=f"my {name}",
                seconds=0.5,
            ),
            (5000 * rng.standard_normal(RATE // 2)).clip(-30000, 30000).astype(np.int16),
            {},
        )
        for name, licence in (
            ("bell", "cc0"),
            ("phone", "cc-by"),
            ("glass", "cc0"),
            ("gong", "cc0"),
        )
    ]
    folder = tmp_path_factory.mktemp("clips")
    write_clips(folder, clips, PrepareSettings(mel=MEL), source="test")
    return PreparedData.open(folder)


def test_written_scenes_are_a_prepared_folder(data, tmp_path) -> None:
    write_scenes(data, tmp_path / "out", 7, seed=3, config=CONFIG, clips_per_shard=4)
    scenes = PreparedData.open(tmp_path / "out")
    scenes.verify()
    assert len(scenes) == 7
    assert len(scenes.index.shards) == 2
    mixer = SceneMixer(data, data.where(split="train"), CONFIG, sample_rate=RATE)
    for number in range(7):
        scene = mixer.scene(item_rng(3, 0, number))
        record, details = scenes.records[number], scenes.details(number)
        assert np.abs(scenes.wave(number) - scene.wave).max() < 1e-4
        assert record.captions == scene.captions
        assert record.split == "train"
        told = details["preparation"]
        assert [event["clip"] for event in told["events"]] == [e.clip for e in scene.events]
        assert [event["onset"] for event in told["events"]] == [e.onset for e in scene.events]
        credits = {credit["id"]: credit for credit in told["attribution"]}
        assert set(credits) == {event.clip for event in scene.events}
        assert all(c["author"] == f"maker of {key[:-2]}" for key, c in credits.items())
        assert record.licence == ("cc-by" if "phone-1" in credits else "cc0")
        assert "gong-1" not in credits


def test_two_runs_give_the_same_bytes(data, tmp_path) -> None:
    one, two = (
        write_scenes(data, tmp_path / name, 3, seed=1, config=CONFIG) for name in ("a", "b")
    )
    assert [shard.sha256 for shard in one.shards] == [shard.sha256 for shard in two.shards]
    other = write_scenes(data, tmp_path / "c", 3, seed=2, config=CONFIG)
    assert other.shards[0].sha256 != one.shards[0].sha256


def test_other_settings_do_not_go_into_the_same_folder(data, tmp_path) -> None:
    write_scenes(data, tmp_path, 2, seed=1, config=CONFIG)
    with pytest.raises(DataError, match="scene_seed"):
        write_scenes(data, tmp_path, 2, seed=2, config=CONFIG)
    with pytest.raises(ConfigError, match="at least one scene"):
        write_scenes(data, tmp_path, 0)
