"""The matcher stage end to end at tiny size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from diffsound.config import load_config
from diffsound.data.shards import PreparedData
from diffsound.errors import ConfigError
from diffsound.evaluation.matcher import load_matcher
from diffsound.text.config import TextEncoderConfig
from diffsound.text.encoders import load_text_encoder
from diffsound.training.frozen import load_codec
from diffsound.training.logs import read_log
from diffsound.training.matcher import MatcherRun, MatcherStage
from diffsound.training.runs import train
from diffsound.training.sets import Process

TINY = Path(__file__).parents[2] / "configs" / "tiny"


@pytest.fixture(scope="module")
def ears(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A codec that has learned enough to tell a tone from noise."""
    run = tmp_path_factory.mktemp("codec") / "run"
    settings = ["train.tensorboard=false", "train.max_steps=60"]
    train("codec", TINY / "codec.yaml", prepared, run, settings, quiet=True)
    return run


@pytest.fixture(scope="module")
def trained(prepared: Path, ears: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("matcher") / "run"
    settings = ["train.tensorboard=false", f"codec={ears}", "train.max_steps=60"]
    ending = train("matcher", TINY / "matcher.yaml", prepared, run, settings, quiet=True)
    assert ending == "finished"
    return run


def test_it_learns_which_text_belongs_to_which_sound(
    trained: Path, prepared: Path, ears: Path
) -> None:
    last = [row for row in read_log(trained) if row["kind"] == "valid"][-1]
    assert last["error"] == 0.0
    assert last["pairs"] == 1.0
    matcher = load_matcher(trained)
    encoder = load_text_encoder(TextEncoderConfig(kind="minilm"))
    assert matcher.config.text_fingerprint == encoder.fingerprint
    codec, mel, fingerprint = load_codec(ears)
    assert matcher.config.mel == mel
    texts = encoder(["a tone", "a noise"]).pooled
    data = PreparedData.open(prepared)
    for clip in data.where(split="valid"):
        grid = torch.from_numpy(data.tokens(fingerprint).of(clip)[0].astype("int64"))
        heard = matcher.similarity(codec.decode(grid[None]).clamp(0, 1), texts)[0]
        assert ["tone", "noise"][int(heard.argmax())] == data.records[clip].labels[0]


def test_clips_of_one_class_are_no_wrong_answers(prepared: Path, ears: Path) -> None:
    config = load_config(MatcherRun, TINY / "matcher.yaml", [f"codec={ears}"])
    data = PreparedData.open(prepared)
    stage = MatcherStage(config.completed(data), data, Process())
    batch = next(stage.loader.batches(0))
    same = stage._same(batch)
    names = [stage.classes[key] for key in batch["id"]]
    for i, one in enumerate(names):
        for j, other in enumerate(names):
            assert bool(same[i, j]) == (one == other)
    assert not torch.equal(stage.matcher.mean, torch.full_like(stage.matcher.mean, 0.5))


def test_it_needs_a_codec() -> None:
    with pytest.raises(ConfigError, match="a matcher hears a codec's sounds"):
        load_config(MatcherRun, TINY / "matcher.yaml")
