"""Whole preparations: same bytes, only what is missing, nothing broken."""

import json
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile

from diffsound.data.clip import PreparedClip, PrepareSettings
from diffsound.data.engines import ProcessEngine
from diffsound.data.prepare import prepare, write_clips
from diffsound.data.shards import PreparedData
from diffsound.data.sources import open_source
from diffsound.errors import DataError


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_same_source_gives_the_same_bytes_on_every_engine(
    sounds: Path, tmp_path: Path, settings: PrepareSettings
) -> None:
    (sounds / "audio/clip3.wav").write_bytes(b"broken")
    prepare(open_source(str(sounds)), tmp_path / "one", settings)
    elsewhere = tmp_path / "moved" / "sounds"
    shutil.copytree(sounds, elsewhere)
    prepare(open_source(f"corpus:{elsewhere}"), tmp_path / "two", settings, ProcessEngine(2))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    with tarfile.open(tmp_path / "one/clips-000000.tar") as tar:
        names = tar.getnames()
        assert names == [f"clip{i}.{kind}" for i in range(3) for kind in ("flac", "json")]
        assert all(member.mtime == 0 and member.uid == 0 for member in tar)


def test_bad_clips_are_named_and_the_rest_is_prepared(
    sounds: Path, tmp_path: Path, settings: PrepareSettings
) -> None:
    (sounds / "audio/clip1.wav").write_bytes(b"broken")
    soundfile.write(sounds / "audio/clip4.wav", [0.0] * 4000, 8000)
    (sounds / "audio/clip6.wav").unlink()
    with (sounds / "metadata.csv").open("a") as table:
        table.write("clip0,audio/clip5.wav,,,,,,,,,\n")
    result = prepare(open_source(str(sounds)), tmp_path / "out", settings)
    rejected = {clip.id: clip.reason for clip in result.index.rejected}
    assert set(rejected) == {"clip0", "clip1", "clip4", "clip6"}
    assert rejected["clip0"] == "duplicated id"
    assert rejected["clip4"] == "silent"
    assert rejected["clip6"].startswith("missing")
    assert str(sounds) not in rejected["clip1"]
    assert result.index.clips == result.made == 4
    assert result.index.seconds == pytest.approx(0.2 + 0.3 + 0.35 + 0.45, abs=1e-3)
    assert result.elapsed > 0
    assert len(PreparedData.open(tmp_path / "out")) == 4


def test_licences_are_filtered(sounds: Path, tmp_path: Path, settings: PrepareSettings) -> None:
    free = settings.model_copy(update={"licences": ("cc0", "cc-by")})
    index = prepare(open_source(str(sounds)), tmp_path / "out", free).index
    assert [clip.id for clip in index.rejected] == ["clip2", "clip5"]
    assert index.rejected[0].reason == "licence cc-by-nc is not wanted"
    licences = {record.licence for record in PreparedData.open(tmp_path / "out").records}
    assert licences == {"cc0", "cc-by"}


def test_a_rerun_makes_only_missing_shards(
    sounds: Path, tmp_path: Path, settings: PrepareSettings, write_sound: Callable[..., Path]
) -> None:
    out = tmp_path / "out"
    prepare(open_source(str(sounds)), out, settings)
    before = contents(out)
    assert prepare(open_source(str(sounds)), out, settings).made == 0
    (out / "clips-000001.tar").unlink()
    (out / "clips-000002.json").write_text("{")
    assert prepare(open_source(str(sounds)), out, settings).made == 4
    assert contents(out) == before
    # A changed file redoes its shard, and only that one.
    write_sound(sounds / "audio/clip0.wav", seconds=0.4, seed=99)
    assert prepare(open_source(str(sounds)), out, settings).made == 3
    assert contents(out)["clips-000001.tar"] == before["clips-000001.tar"]


def test_a_shorter_source_leaves_no_old_shards(
    sounds: Path, tmp_path: Path, settings: PrepareSettings
) -> None:
    prepare(open_source(str(sounds)), tmp_path / "out", settings)
    table = (sounds / "metadata.csv").read_text().splitlines()
    (sounds / "metadata.csv").write_text("\n".join(table[:4]) + "\n")
    assert prepare(open_source(str(sounds)), tmp_path / "out", settings).index.clips == 3
    assert set(contents(tmp_path / "out")) == {
        "clips-000000.tar",
        "clips-000000.json",
        "index.json",
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fit": "pad"}, "fit='none', now fit='pad'"),
        ({"max_seconds": 1.0}, "max_seconds=2.0, now max_seconds=1.0"),
    ],
)
def test_changed_settings_are_refused_and_named(
    sounds: Path, tmp_path: Path, settings: PrepareSettings, change: dict, message: str
) -> None:
    prepare(open_source(str(sounds)), tmp_path / "out", settings)
    before = contents(tmp_path / "out")
    with pytest.raises(DataError, match=message):
        prepare(open_source(str(sounds)), tmp_path / "out", settings.model_copy(update=change))
    assert contents(tmp_path / "out") == before


def test_a_changed_mel_is_named_by_its_key(
    sounds: Path, tmp_path: Path, settings: PrepareSettings
) -> None:
    prepare(open_source(str(sounds)), tmp_path / "out", settings)
    mel = settings.mel.model_copy(update={"n_mels": 20})
    with pytest.raises(DataError, match=r"mel\.n_mels=16, now mel\.n_mels=20"):
        prepare(
            open_source(str(sounds)), tmp_path / "out", settings.model_copy(update={"mel": mel})
        )


def test_a_full_disk_is_one_line_and_breaks_nothing(
    sounds: Path, tmp_path: Path, settings: PrepareSettings
) -> None:
    out = tmp_path / "out"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Files may not grow past 8 kB: the index fits, a shard does not.
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    try:
        with pytest.raises(DataError, match=r"cannot write .*clips-000000.tar: File too large"):
            prepare(open_source(str(sounds)), out, settings)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert set(contents(out)) == {"index.json"}
    with pytest.raises(DataError, match="was interrupted; run the same command again"):
        PreparedData.open(out)
    # Nothing is there that other settings could be mixed with.
    other = settings.model_copy(update={"fit": "pad"})
    assert prepare(open_source(str(sounds)), out, other).index.clips == 7


KILLED = """
import sys
import time
from diffsound.data import prepare as module
from diffsound.data.clip import PrepareSettings
from diffsound.data.sources import open_source

settings = PrepareSettings.model_validate_json(sys.argv[3])
told = []

def tell(shard):
    told.append(shard.info.name)
    print(shard.info.name, flush=True)
    if len(told) == 2:
        time.sleep(60)

module.prepare(open_source(sys.argv[1]), sys.argv[2], settings, progress=tell)
"""


def test_a_killed_preparation_is_finished_by_a_rerun(
    sounds: Path, tmp_path: Path, settings: PrepareSettings
) -> None:
    prepare(open_source(str(sounds)), tmp_path / "whole", settings)
    out = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(sounds), str(out), settings.model_dump_json()],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "clips-000000.tar"
    while not (out / "clips-000001.json").exists():
        time.sleep(0.01)
    process.kill()
    process.wait()
    process.stdout.close()
    with pytest.raises(DataError, match="interrupted"):
        PreparedData.open(out)
    abandoned, at_work = out / ".tmp-clips-000002-left.tar", out / ".tmp-clips-000002-new.tar"
    for path in (abandoned, at_work):
        path.write_bytes(b"begun")
    os.utime(abandoned, (0, 0))
    result = prepare(open_source(str(sounds)), out, settings)
    assert result.made < 7
    assert not abandoned.exists()
    at_work.unlink()  # would have belonged to a run beside this one: left alone
    assert contents(out) == contents(tmp_path / "whole")


def test_a_source_without_usable_clips_is_refused(
    tmp_path: Path, settings: PrepareSettings
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.wav").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"no clip of .* could be used \(1 rejected; the first: a"):
        prepare(open_source(str(tmp_path / "in")), tmp_path / "out", settings)


def test_near_duplicates_are_reported(
    sounds: Path, tmp_path: Path, settings: PrepareSettings
) -> None:
    wave, rate = soundfile.read(sounds / "audio/clip5.wav")
    soundfile.write(sounds / "audio/clip2.wav", 0.5 * wave, rate)
    index = prepare(open_source(str(sounds)), tmp_path / "out", settings).index
    assert [group.ids for group in index.near_duplicates] == [("clip2", "clip5")]


def test_clips_made_in_memory_become_a_prepared_folder(
    prepared: PreparedData, tmp_path: Path, settings: PrepareSettings
) -> None:
    clips = [
        PreparedClip(record, (prepared.wave(i) * 32768).astype("int16"), {"mixed_of": [record.id]})
        for i, record in enumerate(prepared.records)
    ]
    index = write_clips(tmp_path / "made", clips, settings, source="mix", made_with={"events": 2})
    assert index.settings["events"] == 2
    again = PreparedData.open(tmp_path / "made")
    assert (again.wave(3) == prepared.wave(3)).all()
    assert json.dumps(again.details(3)["preparation"]) == '{"mixed_of": ["clip3"]}'
    with pytest.raises(DataError, match="events=2, now events=3"):
        write_clips(tmp_path / "made", clips, settings, source="mix", made_with={"events": 3})
