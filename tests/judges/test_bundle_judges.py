"""Bundles that carry a captioner and a classifier: written, found, used, checked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import diffsound
from diffsound.cli.bundle import app
from diffsound.errors import BundleError, InputError
from diffsound.evaluation.sets import judge_folder
from diffsound.judges.captioner import load_captioner
from diffsound.judges.classifier import load_classifier
from diffsound.judges.ranking import LikelihoodRanker
from diffsound.model.bundle import Bundle
from diffsound.model.checks import copy_bundle, describe, verify


@pytest.fixture(scope="module")
def judged(
    tiny_bundle: Bundle, captioner_run: Path, classifier_run: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:  # fmt: skip
    """The tiny bundle with both judges, as float16; read only."""
    folder = tmp_path_factory.mktemp("judged") / "bundle"
    judges = {"captioner": captioner_run, "classifier": classifier_run}
    return replace(tiny_bundle, judges=judges).save_pretrained(folder, torch.float16)


def test_candidates_are_ranked_by_the_bundles_captioner(judged: Path) -> None:
    pipeline = diffsound.load(judged)
    everything = pipeline("a loud dog", num_candidates=4, seed=3)
    assert all(sound.score is None for sound in everything)
    kept = pipeline("a loud dog", num_candidates=4, keep=2, seed=3)
    ranker = LikelihoodRanker(load_captioner(judged / "captioner"))
    scores = ranker.score("a loud dog", everything)
    expected = sorted(zip(scores, (s.seed for s in everything), strict=True), reverse=True)[:2]
    assert [sound.seed for sound in kept] == [seed for _, seed in expected]
    assert [sound.score for sound in kept] == pytest.approx([score for score, _ in expected])


def test_the_captioner_is_loaded_only_when_asked(judged: Path, tmp_path: Path) -> None:
    copy_bundle(judged, tmp_path / "copy")
    (tmp_path / "copy" / "captioner" / "model.safetensors").write_bytes(b"damaged")
    pipeline = diffsound.load(tmp_path / "copy")
    assert pipeline("a dog", seed=1)
    with pytest.raises(BundleError, match="damaged"):
        pipeline("a dog", seed=1, num_candidates=2, keep=1)


def test_without_a_captioner_keep_is_refused(tiny_folder: Path) -> None:
    with pytest.raises(InputError, match="'tiny' has no ranker"):
        diffsound.load(tiny_folder)("a dog", num_candidates=2, keep=1)


def test_judges_survive_a_round_trip(judged: Path, classifier_run: Path, tmp_path: Path) -> None:
    again = Bundle.from_pretrained(judged).save_pretrained(tmp_path / "again", torch.float16)
    assert verify(again) == []
    for name in ("captioner/config.json", "classifier/model.safetensors"):
        assert (again / name).read_bytes() == (judged / name).read_bytes()
    half = load_classifier(judge_folder(again, None, "classifier"))
    assert half.fingerprint == load_classifier(classifier_run).fingerprint
    assert next(half.parameters()).dtype == torch.float32
    whole = (classifier_run / "export" / "model.safetensors").stat().st_size
    assert (judged / "classifier" / "model.safetensors").stat().st_size < 0.75 * whole


def test_inspect_and_verify_cover_the_judges(judged: Path, tmp_path: Path) -> None:
    assert describe(judged)["classifier"]["parameters"] > 1000
    shown = CliRunner().invoke(app, ["inspect", str(judged)]).output
    assert "captioner  parameters" in shown
    assert sum(f["bytes"] for f in _files(judged).values()) == describe(judged)["bytes"]
    assert verify(judged) == []
    copy_bundle(judged, tmp_path / "copy")
    assert verify(tmp_path / "copy") == []
    (tmp_path / "copy" / "classifier" / "model.safetensors").unlink()
    assert verify(tmp_path / "copy") == ["classifier/model.safetensors is missing"]


def test_a_judge_of_the_other_kind_is_refused(
    tiny_bundle: Bundle, classifier_run: Path, tmp_path: Path
) -> None:
    wrong = replace(tiny_bundle, judges={"captioner": classifier_run})
    with pytest.raises(BundleError, match="holds a classifier, not a captioner"):
        wrong.save_pretrained(tmp_path / "wrong")
    assert not (tmp_path / "wrong" / "config.json").exists()


def _files(folder: Path) -> dict[str, dict[str, int]]:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))["files"]
