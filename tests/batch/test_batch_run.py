"""Bulk generation on a tiny bundle: same sounds as single calls, resumable, failures listed."""

from __future__ import annotations

import io
import json
import os
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from diffsound.audio.io import describe_audio, read_audio
from diffsound.audio.mixing import integrated_loudness
from diffsound.batch import manifest
from diffsound.batch.rows import read_requests
from diffsound.batch.run import BatchReport, Interrupted, Maker, _together, generate_batch
from diffsound.errors import AudioError, BundleError, DataError, InputError
from diffsound.files import sha256
from diffsound.generation.pipeline import TextToSound

ROWS: list[dict[str, Any]] = [
    {"prompt": "a dog barks", "seed": 7},
    {"prompt": "rain", "duration": 0.6, "candidates": 2, "guidance": 1.0},
    {"prompt": "a bell", "name": "bell", "steps": 2, "negative": "wind"},
    {"prompt": "rain"},
]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write(tmp_path, ROWS)


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_file_is_what_a_single_call_writes(
    tmp_path: Path, prompts: Path, tiny_folder: Path, pipeline: TextToSound
) -> None:
    seen: list[float] = []
    report = generate_batch(
        prompts, tmp_path / "out", bundle=tiny_folder, workers=3, progress=seen.append
    )
    assert report == BatchReport(made=5, kept=0, failures=())
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    entries = lines(tmp_path / "out" / "manifest.jsonl")
    dog, rain_1, rain_2, bell, rain = entries
    assert dog["file"] == "a-dog-barks-7.wav"
    assert bell["file"] == "bell.wav"
    assert rain_2["seed"] == rain_1["seed"] + 1
    for entry, options in (
        (dog, {}),
        (rain_1, {"duration": 0.6, "guidance_scale": 1.0}),
        (rain_2, {"duration": 0.6, "guidance_scale": 1.0}),
        (bell, {"num_inference_steps": 2, "negative_prompt": "wind"}),
        (rain, {}),
    ):
        (sound,) = pipeline(entry["prompt"], seed=entry["seed"], **options)
        alone = sound.save(tmp_path / "alone.wav")
        assert sha256(alone) == entry["sha256"] == sha256(tmp_path / "out" / entry["file"])


def test_a_second_run_makes_nothing_and_changes_nothing(
    tmp_path: Path, prompts: Path, tiny_folder: Path
) -> None:
    generate_batch(prompts, tmp_path / "out", bundle=tiny_folder)
    before = contents(tmp_path / "out")
    report = generate_batch(prompts, tmp_path / "out", bundle=tiny_folder)
    assert report == BatchReport(made=0, kept=5, failures=())
    assert contents(tmp_path / "out") == before


def test_it_resumes_where_it_stopped(tmp_path: Path, prompts: Path, tiny_folder: Path) -> None:
    whole = tmp_path / "whole"
    generate_batch(prompts, whole, bundle=tiny_folder)
    out = tmp_path / "out"
    generate_batch(prompts, out, bundle=tiny_folder)
    # As after a kill: a line cut short, a file without its line, a file that is damaged.
    listed = (out / "manifest.jsonl").read_bytes().splitlines(keepends=True)
    (out / "manifest.jsonl").write_bytes(b"".join(listed[:3]) + listed[3][:20])
    (out / lines(whole / "manifest.jsonl")[1]["file"]).write_bytes(b"damaged")
    with pytest.raises(AudioError, match="is not the sound of line 2"):
        generate_batch(prompts, out, bundle=tiny_folder)
    (out / lines(whole / "manifest.jsonl")[1]["file"]).unlink()
    report = generate_batch(prompts, out, bundle=tiny_folder)
    assert (report.made, report.kept) == (3, 2)
    assert contents(out) == contents(whole)


def test_rows_that_fail_are_listed_and_take_no_other_with_them(
    tmp_path: Path, tiny_folder: Path
) -> None:
    rows = [
        {"prompt": "rain", "seed": 1},
        {"prompt": "   ", "seed": 2},
        {"prompt": "bad \ud800 text", "seed": 3},
        {"prompt": "long", "steps": 999},
        {"prompt": "odd", "remask": 0.5},
        {"prompt": "wind", "seed": 4},
    ]
    path = write(tmp_path, rows)
    report = generate_batch(path, tmp_path / "out", bundle=tiny_folder)
    assert report.made == 2
    assert [failure.line for failure in report.failures] == [2, 3, 4, 5]
    listed = lines(tmp_path / "out" / "failures.jsonl")
    assert [failure["line"] for failure in listed] == [2, 3, 4, 5]
    assert "steps must be from 1 to 10" in listed[2]["error"]
    # Put right, the rest is made and the list of failures is gone.
    report = generate_batch(
        write(tmp_path, [rows[0], rows[5]]), tmp_path / "out", bundle=tiny_folder
    )
    assert report == BatchReport(made=0, kept=2, failures=())
    assert not (tmp_path / "out" / "failures.jsonl").exists()


def test_rows_have_their_own_files_and_variations(tmp_path: Path, tiny_folder: Path) -> None:
    rows = [
        {"prompt": "rain", "seed": 1, "rate": 48000, "channels": 2, "bit_depth": "24"},
        {"prompt": "a knock", "seed": 5, "variations": 3, "duration": 0.6, "name": "knock"},
        {"prompt": "rain", "seed": 2},
    ]
    out = tmp_path / "out"
    report = generate_batch(write(tmp_path, rows), out, bundle=tiny_folder, rate=44100)
    assert report == BatchReport(made=5, kept=0, failures=())
    assert ", 48000 Hz, stereo, WAV (Signed 24 bit PCM)" in describe_audio(out / "rain-1.wav")
    assert ", 44100 Hz, mono, WAV (Signed 16 bit PCM)" in describe_audio(out / "rain-2.wav")
    pipeline = TextToSound.from_pretrained(tiny_folder)
    takes = pipeline.variations("a knock", 3, seed=5, duration=0.6)
    for number, take in enumerate(takes, 1):
        assert (out / f"knock-{number}.wav").read_bytes() == take.encode("wav", rate=44100)
    # A lost variation is made again with the others, which it depends on.
    (out / "knock-2.wav").unlink()
    report = generate_batch(write(tmp_path, rows), out, bundle=tiny_folder, rate=44100)
    assert report == BatchReport(made=3, kept=2, failures=())
    # Another rate is another file, for the row that has none of its own.
    report = generate_batch(write(tmp_path, rows), out, bundle=tiny_folder, rate=32000)
    assert (report.made, report.kept) == (4, 1)


def test_a_failure_is_tried_once_more(tmp_path: Path, tiny_folder: Path) -> None:
    """The first attempt asks for 999 steps, which fails; the second for what the row says."""
    maker = Maker(str(tmp_path), str(tiny_folder), "cpu", "torch", ())
    attempts: list[int] = []

    class Flaky:
        context = maker.context

        def __call__(self, requests: Any, stopped: Any = None) -> Any:
            attempts.append(len(requests))
            if len(attempts) == 1:
                return maker([replace(r, settings={"num_inference_steps": 999}) for r in requests])
            return maker(requests)

    from diffsound.batch.run import _first_and_again

    requests = read_requests(write(tmp_path, [{"prompt": "rain", "seed": 1}]), "wav")
    failed, made = _first_and_again(
        lambda make, todo: (make([r]) for r in todo),
        Flaky(),  # type: ignore[arg-type]
        requests,
        tmp_path,
        None,
    )
    assert attempts == [1, 1]
    assert failed == []
    assert list(made) == ["rain-1.wav"]


def test_nothing_is_overwritten_unless_told(
    tmp_path: Path, prompts: Path, tiny_folder: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "bell.wav").write_bytes(b"mine")
    with pytest.raises(AudioError, match=r"bell.wav exists and is not the sound of line 3"):
        generate_batch(prompts, out, bundle=tiny_folder)
    assert contents(out) == {"bell.wav": b"mine"}
    generate_batch(prompts, out, bundle=tiny_folder, overwrite=True)
    assert (out / "bell.wav").read_bytes() != b"mine"
    # Other settings under the same name are another sound.
    with pytest.raises(AudioError, match="is not the sound of line"):
        generate_batch(prompts, out, bundle=tiny_folder, duration=2.0)


def test_sounds_of_other_files_stay_in_the_manifest(tmp_path: Path, tiny_folder: Path) -> None:
    out = tmp_path / "out"
    generate_batch(write(tmp_path, [{"prompt": "rain", "seed": 1}]), out, bundle=tiny_folder)
    generate_batch(write(tmp_path, [{"prompt": "wind", "seed": 2}]), out, bundle=tiny_folder)
    assert [e["file"] for e in lines(out / "manifest.jsonl")] == ["rain-1.wav", "wind-2.wav"]


def test_the_best_of_each_row_are_kept(tmp_path: Path, ranking_folder: Path) -> None:
    rows = [
        {"prompt": "a loud dog", "seed": 5, "candidates": 4, "keep": 2},
        {"prompt": "a sound", "name": "one", "seed": 9, "candidates": 3, "keep": 1},
        {"prompt": "a dog", "seed": 2},
    ]
    out = tmp_path / "out"
    path = write(tmp_path, rows)
    report = generate_batch(path, out, bundle=ranking_folder, workers=2)
    assert report == BatchReport(made=4, kept=0, failures=())
    entries = lines(out / "manifest.jsonl")
    names = ["a-loud-dog-5-1.wav", "a-loud-dog-5-2.wav", "one.wav", "a-dog-2.wav"]
    assert [entry["file"] for entry in entries] == names
    pipeline = TextToSound.from_pretrained(ranking_folder)
    best = pipeline("a loud dog", num_candidates=4, keep=2, seed=5)
    best += pipeline("a sound", num_candidates=3, keep=1, seed=9)
    for sound, entry in zip(best, entries, strict=False):
        assert (entry["seed"], entry["score"]) == (sound.seed, pytest.approx(sound.score, abs=1e-3))
        assert sha256(sound.save(tmp_path / "alone.wav")) == entry["sha256"]
    assert "score" not in entries[3]

    # One of a row's best is gone: all its candidates are made again, and nothing else changes.
    before = contents(out)
    (out / names[1]).unlink()
    report = generate_batch(path, out, bundle=ranking_folder)
    assert report == BatchReport(made=2, kept=2, failures=())
    assert contents(out) == before
    # As after a kill before the manifest was written: the files say which rows they are of.
    (out / "manifest.jsonl").unlink()
    assert generate_batch(path, out, bundle=ranking_folder).made == 4
    assert contents(out) == before
    other = write(tmp_path, [{"prompt": "rain", "name": "one", "candidates": 3, "keep": 1}])
    with pytest.raises(AudioError, match="is not the sound of line 1"):
        generate_batch(other, out, bundle=ranking_folder)


def test_keep_needs_a_bundle_that_can_choose(tmp_path: Path, tiny_folder: Path) -> None:
    path = write(tmp_path, [{"prompt": "rain", "candidates": 2}])
    with pytest.raises(InputError, match="no captioner to choose"):
        generate_batch(path, tmp_path / "out", bundle=tiny_folder, keep=1)
    assert not (tmp_path / "out").exists()


def test_what_workers_get_survives_the_way_to_them(tmp_path: Path, tiny_folder: Path) -> None:
    """Another process unpickles the work, makes it and pickles what became of it."""
    import pickle
    import subprocess
    import sys

    rows = [{"prompt": "rain", "seed": 1, "candidates": 2}, {"prompt": "odd", "steps": 999}]
    requests = read_requests(write(tmp_path, rows), "wav")
    maker = Maker(str(tmp_path), str(tiny_folder), "cpu", "torch", ("context",))
    code = (
        "import pickle, sys; maker, chunks = pickle.load(sys.stdin.buffer); "
        "sys.stdout.buffer.write(pickle.dumps([maker(chunk) for chunk in chunks]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps((maker, [[request] for request in requests])),
        capture_output=True, check=True, timeout=120,
    )  # fmt: skip
    made, failed = pickle.loads(done.stdout)
    assert [entry["file"] for entry in made.made] == ["rain-1.wav", "rain-2.wav"]
    assert [failure.line for failure in failed.failures] == [2]
    again = pickle.loads(pickle.dumps(requests[0]))
    assert again == requests[0]
    assert made.made[1]["key"] == again.key(1, ("context",))


def test_formats_and_loudness(tmp_path: Path, tiny_folder: Path) -> None:
    path = write(tmp_path, [{"prompt": "rain", "seed": 1}])
    generate_batch(path, tmp_path / "out", bundle=tiny_folder, file_format="ogg", loudness=-30.0)
    assert np.isfinite(read_audio(tmp_path / "out" / "rain-1.ogg")).all()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"file_format": "aiff"}, InputError),
        ({"engine": "magic"}, InputError),
        ({"workers": 0}, InputError),
        ({"address": "auto"}, InputError),
        ({"bundle": "no-such-bundle"}, BundleError),
        ({"backend": "magic"}, InputError),
    ],
)
def test_bad_options(
    tmp_path: Path, prompts: Path, tiny_folder: Path, options: dict, error: type[Exception]
) -> None:
    with pytest.raises(error):
        generate_batch(prompts, tmp_path / "out", **{"bundle": tiny_folder, **options})


def test_a_damaged_manifest_is_refused(tmp_path: Path, prompts: Path, tiny_folder: Path) -> None:
    (tmp_path / manifest.MANIFEST).write_text("nonsense\n{}\n")
    with pytest.raises(DataError, match="line 1 is damaged"):
        generate_batch(prompts, tmp_path, bundle=tiny_folder)


def test_a_folder_that_cannot_be_written(tmp_path: Path, prompts: Path) -> None:
    with pytest.raises(InputError, match="cannot create the folder"):
        generate_batch(prompts, "/proc/out")


def test_rows_of_equal_settings_are_put_together(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{i}", "duration": 1 + i % 2, "seed": i} for i in range(7)]
    requests = read_requests(write(tmp_path, rows), "wav")
    chunks = list(_together(requests, 2))
    assert sorted(r.line for chunk in chunks for r in chunk) == list(range(1, 8))
    assert all(len({r.group for r in chunk}) == 1 for chunk in chunks)
    assert sorted(map(len, chunks)) == [1, 2, 2, 2]


def test_chunks_make_the_same_files_as_rows_alone(tmp_path: Path, tiny_folder: Path) -> None:
    rows = [{"prompt": p, "seed": 3} for p in ("rain", "a very long walk on gravel", "", "wind")]
    requests = read_requests(write(tmp_path, rows), "wav")
    made = {}
    for name, chunks in (("alone", [[r] for r in requests]), ("together", [requests])):
        (tmp_path / name).mkdir()
        maker = Maker(str(tmp_path / name), str(tiny_folder), "cpu", "torch", ())
        outcomes = [maker(chunk) for chunk in chunks]
        assert [f.line for outcome in outcomes for f in outcome.failures] == [3]
        made[name] = contents(tmp_path / name)
    assert made["alone"] == made["together"]
    assert len(made["alone"]) == 3


def test_a_stopped_maker_writes_nothing(tmp_path: Path, tiny_folder: Path) -> None:
    requests = read_requests(write(tmp_path, [{"prompt": "rain"}]), "wav")
    (tmp_path / "out").mkdir()
    maker = Maker(str(tmp_path / "out"), str(tiny_folder), "cpu", "torch", ())
    with pytest.raises(Interrupted):
        maker(requests, lambda: True)
    assert contents(tmp_path / "out") == {}


def test_two_batches_do_not_share_a_folder(
    tmp_path: Path, prompts: Path, tiny_folder: Path
) -> None:
    out = tmp_path / "out"
    refused: list[str] = []

    def second(share: float) -> None:
        with pytest.raises(AudioError) as caught:
            generate_batch(prompts, out, bundle=tiny_folder)
        refused.append(str(caught.value))

    report = generate_batch(prompts, out, bundle=tiny_folder, workers=1, progress=second)
    assert report.made == 5
    assert "another batch is writing" in refused[0]
    assert not (out / "batch.lock").exists()
    assert generate_batch(prompts, out, bundle=tiny_folder).kept == 5


def test_the_lock_of_a_killed_batch_is_taken_over(
    tmp_path: Path, prompts: Path, tiny_folder: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "batch.lock").touch()
    assert generate_batch(prompts, tmp_path / "out", bundle=tiny_folder).made == 5


@pytest.mark.parametrize("line", ["[" * 100_000, '{"prompt": ' * 50_000, "9" * 5000])
def test_json_that_breaks_a_parser_names_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "rain"}\n' + line + "\n")
    with pytest.raises(DataError, match="line 2") as caught:
        read_requests(path, "wav")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["p.jsonl", "p.csv", "p.txt"])
def test_a_pipe_or_folder_is_no_file_of_prompts(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / name).mkdir()
    for path in (tmp_path / name, tmp_path / "folder" / name):
        with pytest.raises(DataError, match="cannot read"):
            read_requests(path, "wav")


def test_a_sample_pack_has_folders_credits_and_a_zip(tiny_folder: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("prompt,candidates,folder\na clap,2,\nrain,1,weather\n", encoding="utf-8")
    out = tmp_path / "pack"
    for made in (3, 0):
        report = generate_batch(
            rows, out, bundle=tiny_folder, pack=True, duration=0.6, rate=44100, channels=2,
            workers=1,
        )  # fmt: skip
        assert report.made == made
    names = ["a-clap/a-clap-01.wav", "a-clap/a-clap-02.wav", "weather/rain.wav"]
    with zipfile.ZipFile(tmp_path / "pack.zip") as archive:
        files = {f"pack/{name}" for name in [*names, "LICENCE.txt", "CREDITS.txt"]}
        assert files <= set(archive.namelist())
        assert "a clap (seed " in archive.read("pack/CREDITS.txt").decode()
        for name in names:
            wave, rate = soundfile.read(io.BytesIO(archive.read(f"pack/{name}")))
            assert (rate, wave.shape[1]) == (44100, 2)
            loudness = integrated_loudness(wave, rate)
            # As loud as its peaks allow, and no louder.
            assert loudness == pytest.approx(-23, abs=0.2) or np.abs(wave).max() > 0.88
            assert loudness < -22.7


def test_a_pack_replaces_no_other_zip(tiny_folder: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.txt"
    rows.write_text("rain\n", encoding="utf-8")
    (tmp_path / "pack.zip").write_bytes(b"mine")
    with pytest.raises(AudioError, match=r"pack\.zip exists"):
        generate_batch(rows, tmp_path / "pack", bundle=tiny_folder, pack=True, duration=0.6)
    assert (tmp_path / "pack.zip").read_bytes() == b"mine"


def test_folders_belong_to_packs(tiny_folder: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("prompt,folder\nrain,weather\n", encoding="utf-8")
    with pytest.raises(DataError, match="line 2 has a folder; folders belong to --pack"):
        generate_batch(rows, tmp_path / "out", bundle=tiny_folder)
