"""Recognition at tiny size: the sentences, the arithmetic, the run and its report."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from diffsound.cli.evaluate import app
from diffsound.config import parse_config
from diffsound.data.captions import phrase_table
from diffsound.errors import ConfigError, DataError, InputError
from diffsound.evaluation.ears import load_ear
from diffsound.evaluation.recognise import RecogniseSettings, read_prompts, recognise
from ear_support import onnx_ear
from metric_support import RATE, sound

SETTINGS = RecogniseSettings(per_class=2, seconds=0.5, sampling={"num_inference_steps": 2})
PROMPTS = """
dog: [a <big> dog barks, a small dog barks, a dog barks twice]
rain: [it is raining, a wet day]
bell: [a bell rings, ding dong]
whale: [a whale sings]
"""


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.yaml"
    path.write_text(PROMPTS)
    return path


@pytest.fixture(scope="module")
def recognised(
    tiny_folder: Path, labelled_data: Path, classifier_run: Path, prompts: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[str, Any]]:  # fmt: skip
    out = tmp_path_factory.mktemp("recognised") / "out"
    return out, recognise(
        tiny_folder, labelled_data, out, SETTINGS, classifier=classifier_run, prompts=prompts
    )


def _bare(text: str) -> str:
    words = re.findall(r"[^\W_]+", text.lower())
    return " ".join(word for word in words if word not in {"a", "an", "the"})


def test_no_sentence_occurs_in_training() -> None:
    asked = read_prompts()
    assert set(asked) == set(phrase_table("esc50"))
    sentences = [_bare(text) for texts in asked.values() for text in texts]
    assert len(sentences) == len(set(sentences)) == 500
    trained = set()
    for label, entry in phrase_table("esc50").items():
        wordings = [
            *entry["say"],
            *phrase_table("asked")[label],
            *(text for some in entry.get("if", {}).values() for text in some),
        ]
        manners = [f"{text} {manner}" for text in wordings for manner in _manners()]
        frames = [f"{frame} {text}" for text in (label, *wordings) for frame in _FRAMES]
        trained |= {_bare(text) for text in (label, *wordings, *manners, *frames)}
    assert len(trained) > 1000
    assert trained.isdisjoint(sentences)


_FRAMES = ("the sound of", "a recording of", "sound of", "recording of")


def _manners() -> list[str]:
    return list(phrase_table("generic")["manner"])


def test_every_row_is_named_by_the_same_classifier(
    recognised: tuple[Path, dict[str, Any]],
) -> None:
    out, report = recognised
    assert {row: found["clips"] for row, found in report["rows"].items()} == {
        "real": 9, "vocoder": 9, "codec": 9, "generated": 6,
    }  # fmt: skip
    for found in report["rows"].values():
        one, five = (found["scores"][name] for name in ("top-1", "top-5"))
        assert 0 <= one["low"] <= one["value"] <= one["high"] <= 1
        assert five["value"] == 1.0  # there are but three classes
    assert report["ratios"]["generated"]["top-5"] == 1.0
    assert report["protocol"]["left_out"] == {"whale": "the classifier does not know it"}
    assert report["spread"]["classes"] == 2  # bell has one real clip
    assert report["spread"]["ratio"] > 0
    asked = [clip["asked"] for clip in report["clips"]]
    assert asked == [label for label in ("dog", "rain", "bell") for _ in range(2)]
    assert report == json.loads((out / "report.json").read_text(encoding="utf-8"))


def test_shares_agree_with_the_clips(recognised: tuple[Path, dict[str, Any]]) -> None:
    out, report = recognised
    by_class = {
        label: np.mean([c["heard"] == label for c in report["clips"] if c["asked"] == label])
        for label in ("dog", "rain", "bell")
    }
    found = report["rows"]["generated"]["scores"]["top-1"]["value"]
    assert found == pytest.approx(np.mean(list(by_class.values())))
    for entry in report["classes"]:
        assert entry["generated"]["top-1"] == pytest.approx(by_class[entry["label"]])
    assert [e["generated"]["top-1"] for e in report["classes"]] == sorted(by_class.values())
    with (out / "confusion-generated.csv").open(encoding="utf-8", newline="") as stream:
        lines = {line["asked"]: line for line in csv.DictReader(stream)}
    for label in by_class:
        assert int(lines[label][label]) == round(2 * by_class[label])
    assert (out / "confusion.png").stat().st_size > 1000


def test_the_page_is_self_contained(recognised: tuple[Path, dict[str, Any]]) -> None:
    page = (recognised[0] / "report.html").read_text(encoding="utf-8")
    assert page.count("<audio") == 3 * 3  # of each class a real clip and two sounds
    assert all(s.startswith("data:") for s in re.findall(r'(?:src|href)="([^"]{0,12})', page))
    assert "a &lt;big&gt; dog barks" in page


def test_resumes_and_refuses_other_settings(
    recognised: tuple[Path, dict[str, Any]], tiny_folder: Path, labelled_data: Path,
    classifier_run: Path, prompts: Path,
) -> None:  # fmt: skip
    out, report = recognised
    lost, kept = sorted((out / "generated").glob("*.wav"))[:2]
    touched = kept.stat().st_mtime_ns
    lost.unlink()
    options: dict[str, Any] = {"classifier": classifier_run, "prompts": prompts}
    again = recognise(tiny_folder, labelled_data, out, SETTINGS, **options)
    assert again["rows"] == report["rows"]
    assert kept.stat().st_mtime_ns == touched
    other = SETTINGS.model_copy(update={"seconds": 1.0})
    with pytest.raises(InputError, match=r"seconds was 0\.5"):
        recognise(tiny_folder, labelled_data, out, other, **options)


def test_an_outside_ear_gives_a_second_opinion(
    recognised: tuple[Path, dict[str, Any]], tiny_folder: Path, labelled_data: Path,
    classifier_run: Path, prompts: Path, tmp_path: Path,
) -> None:  # fmt: skip
    out, first = recognised
    plug = onnx_ear(tmp_path)
    ear = load_ear(plug)
    waves = [ear(sound(n), RATE) for n in range(16)]
    folds = np.repeat([1, 2], 8)
    np.savez(tmp_path / "real.npz", E=np.stack(waves), Y=np.array(["Dog", "rain"] * 8), F=folds)
    words = ["recognise", tiny_folder, "--data", labelled_data, "--out", out, "--per-class", 2]
    words += ["--classifier", classifier_run, "--prompts", prompts, "--seconds", 0.5]
    words += ["--set", "num_inference_steps=2"]
    done = CliRunner().invoke(app, [str(word) for word in (*words, "--ear-fit", 1)])
    assert isinstance(done.exception, InputError)
    assert "need --ear" in str(done.exception)
    words += ["--ear", plug]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(done.exception, DataError)  # the data has no split to fit a probe on
    assert "two folds" in str(done.exception)
    words += ["--ear-clips", tmp_path / "real.npz", "--ear-fit", 1, "--ear-reference", 2]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    assert re.search(r"^by ear, generated: top-1 \S+, top-5 1, Fréchet", done.output, flags=re.M)
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert {key: report[key] for key in ("rows", "classes")} == {
        key: first[key] for key in ("rows", "classes")
    }
    second = report["ear"]
    assert second["left_out"] == ["bell"]
    assert {row: found["clips"] for row, found in second["rows"].items()} == {
        "real": 8, "vocoder": 8, "codec": 8, "generated": 4,
    }  # fmt: skip
    assert (second["probe"]["fit"], second["probe"]["fitted"]) == ("1", 8)
    assert {entry["label"] for entry in second["classes"]} == {"dog", "rain"}
    with (out / "ear-confusion-real.csv").open(encoding="utf-8", newline="") as stream:
        lines = list(csv.DictReader(stream))
    right = sum(int(line[line["asked"]]) for line in lines)
    assert second["rows"]["real"]["scores"]["top-1"]["value"] == right / 8
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "By an outside ear: ear.onnx" in page


def test_the_best_candidates_are_kept(
    tiny_folder: Path, labelled_data: Path, classifier_run: Path, captioner_run: Path,
    prompts: Path, tmp_path: Path,
) -> None:  # fmt: skip
    words = ["recognise", tiny_folder, "--data", labelled_data, "--out", tmp_path / "out"]
    words += ["--classifier", classifier_run, "--prompts", prompts, "--per-class", 1]
    words += ["--seconds", 0.5, "--candidates", 3, "--keep", 2, "--set", "num_inference_steps=2"]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(done.exception, InputError)
    assert "has no ranker" in str(done.exception)
    assert not (tmp_path / "out" / "real").exists()
    words += ["--captioner", captioner_run]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    assert re.search(r"^generated / real: top-1 \S+, top-5 1$", done.output, flags=re.M)
    assert sorted(path.stem for path in (tmp_path / "out" / "generated").glob("*.wav")) == [
        f"{label}-00.{place}" for label in ("bell", "dog", "rain") for place in (0, 1)
    ]


def test_bad_prompts_and_empty_splits_are_reported(
    tiny_folder: Path, labelled_data: Path, classifier_run: Path, prompts: Path, tmp_path: Path
) -> None:
    nowhere = SETTINGS.model_copy(update={"split": "test"})
    with pytest.raises(DataError, match=r"no class has sentences.*'test' split"):
        recognise(
            tiny_folder, labelled_data, tmp_path / "out", nowhere,
            classifier=classifier_run, prompts=prompts,
        )  # fmt: skip
    with pytest.raises(ConfigError, match="keep 2 is more than the 1 candidates"):
        parse_config(RecogniseSettings, {"keep": 2})
    for text, message in (
        ("dog: bark", "'dog' must have a list"),
        ("dog: []", "'dog' must have a list"),
        ("[a]", "sentences by class"),
        ("a: [", "cannot be read"),
    ):
        bad = tmp_path / "bad.yaml"
        bad.write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_prompts(bad)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_prompts(tmp_path / "none.yaml")
