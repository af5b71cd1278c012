"""Random access to a prepared folder, and what happens when it is damaged."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from diffsound.audio.mel import MelFrontEnd
from diffsound.data.clip import PrepareSettings
from diffsound.data.prepare import prepare
from diffsound.data.shards import PreparedData, read_span
from diffsound.data.sources import open_source
from diffsound.errors import DataError


def test_clips_are_the_sources_clips(prepared: PreparedData, sounds: Path) -> None:
    assert len(prepared) == 7
    for i, record in enumerate(prepared.records):
        wave, rate = soundfile.read(sounds / f"audio/clip{i}.wav", dtype="float32")
        assert rate == 8000
        np.testing.assert_allclose(prepared.wave(i), wave, atol=2**-15)
        assert prepared.wave(i).dtype == np.float32
        assert record.seconds == len(wave) / rate
        assert record.author == f"maker {i}"
        assert record.captions[0] == f"a {record.labels[0]} sound"
        assert prepared.position(f"clip{i}") == i
    with pytest.raises(DataError, match="no clip 'clip9'"):
        prepared.position("clip9")


def test_mels_are_computed_or_stored(
    prepared: PreparedData, sounds: Path, tmp_path: Path, settings: PrepareSettings
) -> None:
    expected = MelFrontEnd(settings.mel)(torch.from_numpy(prepared.wave(2))[None])[0].numpy()
    np.testing.assert_allclose(prepared.mel(2), expected, atol=1e-6)
    stored = settings.model_copy(update={"store_mel": True})
    prepare(open_source(str(sounds)), tmp_path / "stored", stored)
    mel = PreparedData.open(tmp_path / "stored").mel(2)
    assert mel.dtype == np.float32
    np.testing.assert_allclose(mel, expected, atol=1e-3)


def test_clips_are_selected_by_split_label_and_licence(prepared: PreparedData) -> None:
    assert prepared.where(split="valid") == [5, 6]
    assert prepared.where(labels=["rain", "snow"]) == [5, 6]
    assert prepared.where(licences={"cc0"}) == [0, 3, 6]
    assert prepared.where(split="train", licences=["cc-by"]) == [1, 4]
    assert prepared.where(sources=["sounds"]) == list(range(7))
    assert prepared.where() == list(range(7))


def test_prepared_data_can_be_pickled(prepared: PreparedData) -> None:
    prepared.mel(0)
    copy = pickle.loads(pickle.dumps(prepared))
    assert (copy.wave(4) == prepared.wave(4)).all()


def test_each_clip_records_its_preparation(prepared: PreparedData) -> None:
    details = prepared.details(1)
    assert details["id"] == "clip1"
    assert details["preparation"] == {
        "read_seconds": 0.25,
        "own_captions": ["a dog sound"],
        "origin": "audio/clip1.wav",
    }


def test_a_damaged_shard_is_named(prepared: PreparedData) -> None:
    prepared.verify()
    path = prepared.folder / "clips-000001.tar"
    content = bytearray(path.read_bytes())
    content[700] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"clips-000001.tar is damaged"):
        prepared.verify()
    path.write_bytes(content[:-512])
    with pytest.raises(DataError, match="missing, truncated or not the one of the index"):
        PreparedData.open(prepared.folder)
    path.unlink()
    with pytest.raises(DataError, match=r"cannot read .*clips-000001.tar"):
        prepared.verify()


def test_a_span_past_the_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert read_span(tmp_path / "x", (1, 3)) == b"234"
    with pytest.raises(DataError, match="shorter than its index says"):
        read_span(tmp_path / "x", (3, 3))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot read"),
        ("[]", "damaged or of another kind"),
        ('{"format": 99}', "format 99, newer than the 1"),
        ('{"format": 1, "kind": "tokens"}', "damaged or of another kind"),
    ],
)
def test_wrong_indexes_are_refused(prepared: PreparedData, content: str, message: str) -> None:
    (prepared.folder / "index.json").write_text(content)
    with pytest.raises(DataError, match=message):
        PreparedData.open(prepared.folder)


def test_unprepared_folders_are_refused(prepared: PreparedData, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a prepared folder"):
        PreparedData.open(tmp_path)
    with pytest.raises(DataError, match="make it with: diffsound data tokenize"):
        prepared.tokens()
    with pytest.raises(DataError, match="make it with: diffsound data encode-text"):
        prepared.text()


def test_the_index_records_the_settings(prepared: PreparedData, settings: PrepareSettings) -> None:
    index = json.loads((prepared.folder / "index.json").read_text())
    assert index["settings"] == settings.model_dump(mode="json")
    assert prepared.index.mel == settings.mel
    assert [shard["clips"] for shard in index["shards"]] == [3, 3, 1]
