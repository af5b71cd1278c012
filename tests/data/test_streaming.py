"""Streaming: the same batches for any workers, exact resume, every shard read."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diffsound.audio.mel import MelConfig
from diffsound.data.augment import AugmentConfig
from diffsound.data.clip import PreparedClip, PrepareSettings
from diffsound.data.datasets import WaveDataset
from diffsound.data.prepare import write_clips
from diffsound.data.record import AudioLocation, Record
from diffsound.data.shards import PreparedData
from diffsound.data.streaming import StreamLoader, read_clips
from diffsound.errors import ConfigError, DataError

RATE = 8000
MEL = MelConfig(sample_rate=RATE, n_fft=512, hop_length=128, n_mels=16, fmin=50, fmax=3800)
MAKE = functools.partial(
    WaveDataset,
    samples=400,
    augment=AugmentConfig(fill="chain", mix_probability=0.5),
    labels=["even", "odd"],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("stream")
    clips = [
        PreparedClip(
            Record(
                id=f"clip-{i:03d}",
                audio=AudioLocation(""),
                labels=(("even", "odd")[i % 2],),
                split="valid" if i % 5 == 0 else "train",
                seconds=0.06,
            ),
            (6000 * rng.standard_normal(480)).clip(-30000, 30000).astype(np.int16),
            {},
        )
        for i in range(60)
    ]
    write_clips(
        path, clips, PrepareSettings(mel=MEL, clips_per_shard=6, store_mel=True), source="test"
    )
    return path


def loader(folder: Path, **options: Any) -> StreamLoader:
    settings = {"seed": 3, "streams": 4, "buffer": 5, "batches_per_epoch": 9, **options}
    return StreamLoader(folder, MAKE, 3, **settings)


def rows(batches) -> list[tuple[list[str], float, list[int]]]:
    return [(b["id"], float(b["wave"].double().sum()), b["label"].tolist()) for b in batches]


def test_one_pass_reads_what_random_access_reads(folder) -> None:
    data = PreparedData.open(folder)
    streamed = [clip for path in sorted(folder.glob("clips-*.tar")) for clip in read_clips(path, 6)]
    assert [record.id for record, _ in streamed] == [record.id for record in data.records]
    assert all(encoded == data.encoded(i) for i, (_, encoded) in enumerate(streamed))
    assert streamed[7][0].labels == data.records[7].labels


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(folder, workers) -> None:
    alone, helped = loader(folder), loader(folder, workers=workers)
    assert rows(helped.batches(1)) == rows(alone.batches(1))
    assert rows(helped.batches(1, 5)) == rows(alone.batches(1, 5))


@pytest.mark.parametrize("start", [0, 1, 3, 4, 7, 9])
def test_resuming_gives_the_batches_not_yet_done(folder, start) -> None:
    assert rows(loader(folder).batches(0, start)) == rows(loader(folder).batches(0))[start:]


def test_epochs_and_seeds_differ(folder) -> None:
    one = rows(loader(folder).batches(0))
    assert one != rows(loader(folder).batches(1))
    assert one != rows(loader(folder, seed=4).batches(0))
    assert len(one) == len(loader(folder)) == loader(folder).batches_in(3) == 9


def test_labels_belong_to_their_clips(folder) -> None:
    for ids, _, labels in rows(loader(folder).batches(0)):
        assert labels == [int(name[-3:]) % 2 for name in ids]


def test_long_epochs_visit_everything_evenly_over_ranks(folder) -> None:
    seen: Counter[str] = Counter()
    for rank in range(2):
        ranked = loader(folder, rank=rank, world=2, streams=2, batches_per_epoch=40)
        ids = [i for batch in ranked.batches(0) for i in batch["id"]]
        assert not seen.keys() & set(ids)
        seen.update(ids)
    assert len(seen) == 60
    assert max(seen.values()) <= 12  # 4 expected


def test_filter_keeps_only_what_is_wanted(folder) -> None:
    train = loader(folder, keep=is_train, batches_per_epoch=40)
    ids = {i for batch in train.batches(0) for i in batch["id"]}
    assert ids == {f"clip-{i:03d}" for i in range(60) if i % 5}
    with pytest.raises(DataError, match="wanted by the filter"):
        next(loader(folder, keep=lambda record: False).batches(0))


def is_train(record: Record) -> bool:
    return record.split == "train"


def test_misuse_is_told_in_one_line(folder, tmp_path) -> None:
    with pytest.raises(DataError, match="10 shards, too few for 8 streams on each of 2 ranks"):
        loader(folder, streams=8, world=2)
    with pytest.raises(ConfigError, match="3 workers cannot share 4 streams"):
        loader(folder, workers=3)
    with pytest.raises(DataError, match="not a finished prepared folder"):
        loader(tmp_path)


@pytest.mark.parametrize("kept", [100, 700, 3000, 5000, 9000])
def test_shards_cut_anywhere_are_named(folder, tmp_path, kept) -> None:
    cut = tmp_path / "cut.tar"
    cut.write_bytes((folder / "clips-000000.tar").read_bytes()[:kept])
    with pytest.raises(DataError, match=r"shard .*cut\.tar.*prepare it again"):
        list(read_clips(cut, 6))
    with pytest.raises(DataError, match="cannot read the shard"):
        list(read_clips(tmp_path / "none.tar", 6))


def test_default_epoch_is_as_long_as_the_data(folder) -> None:
    assert len(loader(folder, batches_per_epoch=None)) == 20
