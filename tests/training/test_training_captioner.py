"""The captioner stage end to end at tiny size: it learns to tell tones from noises."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from diffsound.config import load_config
from diffsound.data.shards import PreparedData
from diffsound.errors import ConfigError, DataError
from diffsound.judges.captioner import UNKNOWN, load_captioner
from diffsound.judges.ranking import LikelihoodRanker
from diffsound.training.judges import (
    CaptionerRun,
    CaptionerStage,
    strangers,
    vocabulary,
)
from diffsound.training.loop import Trainer
from diffsound.training.run_files import read_log
from diffsound.training.stage import Process

CONFIGS = Path(__file__).parents[2] / "configs"


def build(prepared: Path, *overrides: str) -> CaptionerStage:
    config = load_config(CaptionerRun, CONFIGS / "tiny" / "captioner.yaml", overrides)
    torch.manual_seed(config.train.seed)
    return CaptionerStage(config, PreparedData.open(prepared), Process())


@pytest.fixture(scope="module")
def run(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captioner") / "run"
    folder.mkdir()
    stage = build(prepared, "train.log=none")
    trainer = Trainer(stage, stage.config.train, folder, Accelerator())
    assert trainer.fit(quiet=True) == "finished"
    return folder


def test_training_makes_the_captioner_use_the_sound(run: Path) -> None:
    entries = read_log(run)
    train = [entry for entry in entries if entry["kind"] == "train"]
    assert train[-1]["loss"] < 0.5 * train[0]["loss"]
    last = [entry for entry in entries if entry["kind"] == "valid"][-1]
    assert last["pairs"] == 1.0  # every caption fits its own sound better than another
    assert last["nll"] < last["deaf_nll"]


def test_the_export_is_a_captioner_that_ranks(run: Path, prepared: Path) -> None:
    data = PreparedData.open(prepared)

    class Clip:
        sample_rate = 8000

        def __init__(self, place: int) -> None:
            self.wave: np.ndarray = data.wave(place)

    places = data.where(split="valid")
    ranker = LikelihoodRanker(load_captioner(run))
    tones, noises = (
        ranker.score(prompt, [Clip(place) for place in places]) for prompt in ("a tone", "a noise")
    )
    is_tone = [data.records[place].labels == ("tone",) for place in places]
    assert [a > b for a, b in zip(tones, noises, strict=True)] == is_tone


def test_samples_hold_the_captions_it_makes(run: Path) -> None:
    text = (run / "samples" / "step-00000060" / "captions.txt").read_text("utf-8")
    assert text.count("  heard: ") == 2
    assert "clip-12\n" in text
    assert "  truth: a noise\n" in text


def test_an_item_is_a_clip_or_a_scene_of_several(prepared: Path) -> None:
    stage = build(prepared)
    items = [item for epoch in range(8) for item in _items(stage, epoch)]
    texts = {text for text, _ in items}
    assert {"a tone", "a noise"} <= texts
    assert any("tone" in text and "noise" in text for text in texts)
    known = stage.captioner.tokenizer
    assert not [text for text in texts if UNKNOWN in known.encode(text)]
    assert {samples for _, samples in items} == {95 * 64}


def _items(stage: CaptionerStage, epoch: int) -> list[tuple[str, int]]:
    return [
        (text, wave.shape[0])
        for batch in stage.loader.batches(epoch)
        for text, wave in zip(batch["text"], batch["wave"], strict=True)
    ]


def test_a_stranger_is_a_clip_with_another_caption() -> None:
    assert strangers(["a", "a", "b", "a"]) == [(0, 2), (1, 2), (2, 0), (3, 2)]
    assert strangers(["a", "a"]) == []


def test_scenes_add_the_words_that_join_sounds() -> None:
    captions = [["a dog barks"], ["a cat meows"], ["rain"]]
    alone = vocabulary(captions, 1, scenes=False)
    assert set(alone) == {"a", "dog", "barks", "cat", "meows", "rain"}
    joined = set(vocabulary(captions, 1, scenes=True)) - set(alone)
    assert {"and", "then", "while", "barking"} <= joined
    assert vocabulary(captions, 1, scenes=True) == vocabulary(captions, 1, scenes=True)


def test_another_number_of_mel_bands_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"mel\.n_mels is 32 but captioner\.n_mels is 16"):
        load_config(CaptionerRun, CONFIGS / "tiny" / "captioner.yaml", ["captioner.n_mels=16"])


def test_a_split_without_clips_is_refused(prepared: Path) -> None:
    with pytest.raises(DataError, match="no clip with split 'nothing'"):
        build(prepared, "data.train_split=nothing")


@pytest.mark.parametrize("preset", ["paper", "small"])
def test_the_presets_are_valid(preset: str) -> None:
    config = load_config(CaptionerRun, CONFIGS / preset / "captioner.yaml")
    assert config.captioner.n_mels == config.mel.n_mels == 80
