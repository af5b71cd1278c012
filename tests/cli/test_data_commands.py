"""`diffsound data …` from end to end, in one process for speed; errors as a user sees them."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from cli_support import typed
from diffsound.data.shards import PreparedData
from diffsound.model.bundle import load_codec


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three sounds with names that say what they are, and one that is broken."""
    root = tmp_path / "my sounds"
    for i, name in enumerate(("dogs/Dog_bark_01.wav", "dogs/Dog_bark_02.wav", "Rain on roof.wav")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(i).standard_normal(12000 + 3000 * i)
        soundfile.write(root / name, 0.1 * noise, 22050)
    (root / "broken.wav").write_bytes(b"no sound")
    return root


def test_from_a_folder_to_tokens_text_and_a_page(
    folder: Path, tmp_path: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    prepare = ("data", "prepare", folder, "--out", out, "--licence", "cc0", "--engine", "serial")
    assert typed(*prepare) == 0
    told = capsys.readouterr().out
    assert "3 clips" in told
    assert "1 rejected" in told
    assert "clips/s" in told
    assert "audio-hours/hour" in told
    assert typed("data", "tokenize", out, "-b", tiny_folder, "--engine", "serial") == 0
    assert typed("data", "encode-text", out) == 0
    assert "clips/s" in capsys.readouterr().out
    data = PreparedData.open(out)
    codec, _, fingerprint = load_codec(tiny_folder)
    assert data.tokens(fingerprint).of(0).shape[:2] == (1, codec.rows)
    assert len(data.text().of(2)) == len(data.records[2].captions)
    assert "dog bark" in data.records[1].captions[0]

    assert typed("data", "inspect", out, "--verify", "--clips", "2") == 0
    table = capsys.readouterr().out
    assert "cc0 3" in table
    assert fingerprint in table
    assert (out / "report.html").read_text(encoding="utf-8").count("<audio") == 2
    assert typed("data", "inspect", out, "--json", "--clips", "0") == 0
    assert json.loads(capsys.readouterr().out)["clips"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prepare", "nowhere", "--out", "x"], "nowhere does not exist"),
        (["prepare", "{folder}", "--out", "{out}", "--licences", "free"], "unknown licence 'free'"),
        (["prepare", "{folder}", "--out", "{out}", "--max-seconds", "0"], "'max_seconds'"),
        (["prepare", "{folder}", "--out", "{out}", "--loudness", "3"], "'loudness'"),
        (["prepare", "{folder}", "--out", "{out}", "--address", "auto"], "belongs to --engine ray"),
        (["prepare", "wav:{folder}", "--out", "{out}"], "unknown source 'wav'"),
        (["inspect", "{folder}"], "is not a prepared folder"),
        (["tokenize", "{folder}", "--variants", "0"], "'variants'"),
        (["encode-text", "{folder}", "--official"], "--official belongs to --encoder clip"),
    ],
)
def test_mistakes_are_one_line_and_code_2(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    out = tmp_path / "out"
    filled = [text.format(folder=folder, out=out) for text in arguments]
    assert typed("data", *filled) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not out.exists()


def test_scenes_of_a_prepared_folder(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, scenes = tmp_path / "out", tmp_path / "scenes"
    assert typed("data", "prepare", folder, "-o", out, "--licence", "cc0", "-q") == 0
    mix = ("data", "mix", out, "-o", scenes, "--count", 3, "--seconds", 4, "--seed", 5)
    assert typed(*mix, "--set", "events=[2,2]") == 0
    assert "3 scenes" in capsys.readouterr().out
    data = PreparedData.open(scenes)
    assert len(data.records) == 3
    assert all(record.captions and record.licence == "cc0" for record in data.records)
    assert typed(*mix, "--set", "evnts=[2,2]") == 2
    assert "did you mean 'events'" in capsys.readouterr().err


def test_credits(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    prepare = ("data", "prepare", folder, "-o", out, "--licence", "cc-by", "--author", "Ann", "-q")
    assert typed(*prepare) == 0
    capsys.readouterr()
    assert typed("data", "credits", out) == 0
    told = capsys.readouterr().out
    assert told.startswith("# Attribution")
    assert "3 clips" in told
    assert "- Ann [cc-by], 3 clips" in told
