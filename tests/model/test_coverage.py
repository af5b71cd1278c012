"""Coverage: what a model knows of a prompt, from the bundle to every place that shows it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from cli_support import typed
from diffsound.audio.mixing import Extent
from diffsound.errors import BundleError
from diffsound.generation.pipeline import TextToSound
from diffsound.generation.sound import read_recipe
from diffsound.model.bundle import Bundle
from diffsound.model.checks import copy_bundle, describe, verify
from diffsound.model.coverage import COVERAGE_FILES, FAR, KNOWN, Coverage, length_row
from support import KNOWN_CAPTIONS


@pytest.fixture
def folder(knowing: Bundle, tmp_path: Path) -> Path:
    return knowing.save_pretrained(tmp_path / "knowing", torch.float16)


@pytest.mark.parametrize(
    ("prompt", "verdict", "nearest"),
    [
        ("a dog barks", "known", "a dog barks"),
        ("a barking dog", "known", "a dog barks"),
        ("a heavy storm of rain", "similar", "rain falling on a roof"),
        ("the theory of general relativity", "far", None),
    ],
)
def test_verdicts(knowing: Bundle, prompt: str, verdict: str, nearest: str | None) -> None:
    sound = TextToSound(knowing)(prompt, duration=0.5, seed=1)[0]
    assert sound.coverage is not None
    assert sound.coverage["verdict"] == verdict
    assert len(sound.coverage["nearest"]) == 3
    best = sound.coverage["nearest"][0]
    assert best["similarity"] == sound.coverage["similarity"]
    assert nearest is None or best["caption"] == nearest
    assert best["caption"] in sound.coverage["note"]
    if verdict == "far":
        assert all(caption in sound.coverage["note"] for caption in KNOWN_CAPTIONS)


def test_similarity_is_the_cosine_at_every_threshold() -> None:
    axis = torch.eye(2)
    known = Coverage(("east",), axis[:1])
    for cosine in (1.0, KNOWN, KNOWN - 0.01, FAR, FAR - 0.01, -1.0):
        vector = torch.tensor([[cosine, (1 - cosine**2) ** 0.5]]) * 7  # length is no matter
        told = known.of(vector)[0]
        assert told["similarity"] == pytest.approx(cosine, abs=1e-3)
        if round(cosine, 2) not in (KNOWN, FAR):  # on the line, rounding decides
            expected = "known" if cosine > KNOWN else "similar" if cosine > FAR else "far"
            assert told["verdict"] == expected


def test_each_prompt_of_a_batch_has_its_own(knowing: Bundle) -> None:
    sounds = TextToSound(knowing)(["a dog barks", "a door slams shut"], duration=0.5, seed=1)
    assert [s.coverage["nearest"][0]["caption"] for s in sounds if s.coverage] == [
        "a dog barks", "a door slams shut",
    ]  # fmt: skip


def test_the_captions_kept_leave_none_far_away() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = normalize(torch.randn(20, 32, generator=generator), dim=-1)
    crowded = torch.tensor([1] * 1 + [50] * 19)  # one lonely caption among crowds
    pooled = centres.repeat_interleave(crowded, dim=0)
    pooled = pooled + 0.01 * torch.randn(pooled.shape, generator=generator)
    captions = [str(i) for i in range(len(pooled))]
    kept = Coverage.choose(captions, pooled, most=20)
    assert "0" in kept.captions
    nearest = (normalize(pooled, dim=-1) @ kept.vectors.T).max(1).values
    assert len(kept.captions) == 20
    assert nearest.min() > 0.95
    assert Coverage.choose(captions, pooled, most=20).captions == kept.captions


def test_without_it_nothing_is_said(pipeline: TextToSound) -> None:
    sound = pipeline("a dog barks", duration=0.5, seed=1)[0]
    assert sound.coverage is None
    assert "coverage" not in sound.metadata


def test_it_travels_with_the_bundle(knowing: Bundle, folder: Path, tmp_path: Path) -> None:
    assert verify(folder) == []
    assert describe(folder)["known_captions"] == 3
    copy_bundle(folder, tmp_path / "copy")
    for place in (folder, tmp_path / "copy"):
        loaded = Bundle.from_pretrained(place).coverage
        assert loaded is not None
        assert knowing.coverage is not None
        assert loaded.captions == knowing.coverage.captions
        assert torch.equal(loaded.vectors, knowing.coverage.vectors)


@pytest.mark.parametrize("name", COVERAGE_FILES)
@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_damaged_one_is_refused(folder: Path, name: str, damage: str) -> None:
    path = folder / name
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(BundleError, match="coverage") as caught:
        Bundle.from_pretrained(folder)
    assert "\n" not in str(caught.value)


def test_captions_that_do_not_fit_the_vectors(folder: Path) -> None:
    path = folder / "coverage.json"
    text = path.read_text(encoding="utf-8").replace("a dog barks", 'a dog","rks')
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BundleError, match="does not fit the captions"):
        Bundle.from_pretrained(folder)


def test_the_command_line_and_the_file_say_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["a dog barks", "-b", str(folder), "-d", "0.5", "--seed", "1", "--output-dir"]
    assert typed(*asked, str(tmp_path / "plain"), "--candidates", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "well known" in line] == ["  well known: “a dog barks”"]
    assert typed(*asked, str(tmp_path / "json"), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["coverage"]["verdict"] == "known"
    written = read_recipe(told["file"])
    assert written["coverage"] == told["coverage"]


def test_lengths_are_voted_by_the_nearest_captions() -> None:
    axes = torch.eye(3)
    shots = [Extent(0.4, False, 1), Extent(0.6, False, 1), Extent(0.5, False, 2)]
    rain = [Extent(5.0, True, 9), Extent(9.0, True, 3)]
    lengths = torch.stack([length_row(shots), length_row(rain), torch.zeros(4)])
    known = Coverage.choose(["a shot", "rain", "unmeasured"], axes, lengths=lengths)
    shot, water, nothing, far = known.natural(torch.cat([axes, -axes[:1]]))
    assert shot is not None
    assert (shot.single, shot.goes_on, shot.events) == (True, False, 1)
    assert shot.seconds == pytest.approx(0.5, abs=0.01)
    assert water is not None
    assert (water.single, water.goes_on) == (False, True)
    assert nothing is None or nothing.seconds > 0, "what was not measured has no vote"
    assert far is None
    assert Coverage(known.captions, known.vectors).natural(axes) == [None] * 3


def test_one_odd_neighbour_does_not_decide() -> None:
    near = normalize(torch.tensor([[1.0, 0.1 * i] for i in range(5)]), dim=-1)
    rows = torch.tensor([[0.5, 0, 1, 1]] * 4 + [[10.0, 1, 0, 5]])
    told = Coverage(tuple("abcde"), near, rows).natural(torch.tensor([[1.0, 0.2]]))[0]
    assert told is not None
    assert (told.seconds, told.single, told.goes_on) == (0.5, True, False)


def test_lengths_travel_with_the_bundle(knowing: Bundle, tmp_path: Path) -> None:
    assert knowing.coverage is not None
    lengths = torch.tensor([[0.5, 0, 1, 1], [5, 1, 0, 3], [0.75, 0, 1, 1]])
    measured = replace(knowing, coverage=replace(knowing.coverage, lengths=lengths))
    folder = measured.save_pretrained(tmp_path / "measured")
    loaded = Bundle.from_pretrained(folder).coverage
    assert loaded is not None
    assert loaded.lengths is not None
    assert torch.equal(loaded.lengths, lengths)
    wrong = replace(knowing.coverage, lengths=lengths[:2])
    wrong.save(folder)
    with pytest.raises(BundleError, match="lengths that do not fit"):
        Coverage.load(folder)
