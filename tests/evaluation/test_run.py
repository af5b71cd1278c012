"""A whole evaluation at tiny size: generate, score, report, resume."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diffsound.audio.io import read_audio
from diffsound.config import parse_config
from diffsound.data.shards import PreparedData
from diffsound.errors import ConfigError, DataError, InputError
from diffsound.evaluation.run import EvaluationSettings, evaluate
from diffsound.evaluation.sets import choose_examples, read_examples, sample_seed
from diffsound.generation.pipeline import TextToSound

SETTINGS = EvaluationSettings(
    split="valid", samples=2, seconds=0.5, resamples=20, allow_few=True,
    sampling={"num_inference_steps": 2},
)  # fmt: skip


@pytest.fixture(scope="module")
def evaluated(
    tiny_folder: Path, sound_data: Path, classifier_run: Path, captioner_run: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[str, Any]]:  # fmt: skip
    out = tmp_path_factory.mktemp("evaluated") / "out"
    judges = {"classifier": classifier_run, "captioner": captioner_run}
    return out, evaluate(tiny_folder, sound_data, out, SETTINGS, **judges)


def test_every_row_is_scored_by_the_same_measure(evaluated: tuple[Path, dict[str, Any]]) -> None:
    out, report = evaluated
    assert list(report["rows"]) == ["real", "vocoder", "codec", "generated"]
    assert set(report["rows"]["real"]["scores"]) == {"CIDEr", "SPICE", "scene graph"}
    for row, clips in (("vocoder", 6), ("codec", 6), ("generated", 12)):
        found = report["rows"][row]
        assert found["clips"] == clips == len(list((out / row).glob("*.wav")))
        for name in ("FID", "KL"):
            assert found["scores"][name]["value"] > 0
            assert found["scores"][name]["low"] <= found["scores"][name]["high"]
    assert report["protocol"]["real_clips"] == 6
    assert report["protocol"]["sampling"]["num_inference_steps"] == 2
    assert report["protocol"]["seconds_per_sound"] > 0
    assert report["checks"]["clips"] == 12
    assert "copies" in report["checks"]
    assert json.loads((out / "report.json").read_text()) == json.loads(json.dumps(report))


def test_the_page_is_self_contained(evaluated: tuple[Path, dict[str, Any]]) -> None:
    out, _ = evaluated
    page = (out / "report.html").read_text(encoding="utf-8")
    sources = re.findall(r'(?:src|href)="([^"]{0,12})', page)
    examples, neighbours = 6 * 4, 8 * 2
    assert len(sources) == 2 * (examples + neighbours)
    assert all(source.startswith("data:") for source in sources)
    assert page.count("<audio") == examples + neighbours
    assert "a &lt;loud&gt; sound 12" in page
    assert "<loud>" not in page


def test_nearest_training_clips_are_shown_beside_the_generated_ones(
    evaluated: tuple[Path, dict[str, Any]],
) -> None:
    out, report = evaluated
    page = (out / "report.html").read_text(encoding="utf-8")
    nearest = report["checks"]["nearest"]
    distances = [one["distance"] for one in nearest if one["same_recording"] is None]
    assert distances == sorted(distances)
    shown = re.findall(r"<figcaption>(generated|training): ([\w.-]+)</figcaption>", page)
    assert shown == [
        pair for one in nearest for pair in (("generated", one["id"]), ("training", one["nearest"]))
    ]
    assert f"distance {nearest[0]['distance']:.3g}" in page
    training = {f"clip-{number:02d}" for number in range(12)}
    assert {one["nearest"] for one in nearest} <= training


def test_an_interrupted_evaluation_continues(
    evaluated: tuple[Path, dict[str, Any]], tiny_folder: Path, sound_data: Path,
    classifier_run: Path, captioner_run: Path,
) -> None:  # fmt: skip
    """A lost sound is made again, identical; the others are not touched."""
    out, report = evaluated
    lost, kept = sorted((out / "generated").glob("*.wav"))[:2]
    before, touched = read_audio(lost, 22050), kept.stat().st_mtime_ns
    lost.unlink()
    judges = {"classifier": classifier_run, "captioner": captioner_run}
    again = evaluate(tiny_folder, sound_data, out, SETTINGS, **judges)
    np.testing.assert_allclose(read_audio(lost, 22050), before, atol=2e-4)
    assert kept.stat().st_mtime_ns == touched
    before_fid = report["rows"]["codec"]["scores"]["FID"]
    assert again["rows"]["codec"]["scores"]["FID"] == before_fid


def test_other_settings_need_another_folder(
    evaluated: tuple[Path, dict[str, Any]], tiny_folder: Path, sound_data: Path,
    classifier_run: Path,
) -> None:  # fmt: skip
    out, _ = evaluated
    other = SETTINGS.model_copy(update={"seed": 1})
    with pytest.raises(InputError, match=r"seed was 0.*another --out"):
        evaluate(tiny_folder, sound_data, out, other, classifier=classifier_run)


def test_a_bundle_without_classifier_says_what_to_give(
    tiny_folder: Path, sound_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffsound.evaluation.sets.BUNDLED", tmp_path / "nothing" / "small")
    with pytest.raises(InputError, match="--classifier RUN"):
        evaluate(tiny_folder, sound_data, tmp_path / "out", SETTINGS)


def test_rows_follow_the_path_that_ships(
    evaluated: tuple[Path, dict[str, Any]], pipeline: TextToSound
) -> None:
    """The vocoder and codec rows are what the pipeline itself makes of the real clips."""
    out, _ = evaluated
    bundle, rate = pipeline.bundle, pipeline.sample_rate
    name = read_examples(out)[0].id
    wave = torch.from_numpy(read_audio(out / "real" / f"{name}.wav", rate))
    mel = bundle.mel(wave)
    passed = {"vocoder": mel, "codec": pipeline.decode(bundle.codec.encode(mel))}
    for row, heard in passed.items():
        expected = pipeline.vocode(heard)[0, : len(wave)].numpy()
        found = read_audio(out / row / f"{name}.wav", rate)
        np.testing.assert_allclose(found, expected, atol=2e-4)  # 16 bits


def test_caption_metrics_are_chosen_by_name() -> None:
    chosen = parse_config(EvaluationSettings, {"caption_metrics": ["bleu_4", "meteor"]})
    assert chosen.caption_metrics == ("bleu_4", "meteor")
    with pytest.raises(ConfigError, match="unknown metric 'spider'"):
        parse_config(EvaluationSettings, {"caption_metrics": ["spider"]})


def test_examples_are_drawn_by_the_seed(sound_data: Path) -> None:
    data = PreparedData.open(sound_data)
    few, left_out = choose_examples(data, "valid", 3, seed=1)
    assert len(few) == 3
    assert few == choose_examples(data, "valid", 3, seed=1)[0]
    assert few != choose_examples(data, "valid", 3, seed=2)[0]
    assert left_out == {"clip-18": "it has no caption"}
    with pytest.raises(DataError, match=r"no clip of the split 'test'.*valid"):
        choose_examples(data, "test")


def test_every_sound_has_its_own_seed() -> None:
    seeds = {sample_seed(s, name, n) for s in (0, 1) for name in ("a", "b") for n in (0, 1)}
    assert len(seeds) == 8


def test_a_folder_without_an_evaluation_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no examples\.json"):
        read_examples(tmp_path)
